//! Letters as strokes, for pictures made of pixels: drawn by no library and by no font of the machine's.

/// A letter's lines, as pairs of hexadecimal digits: x from the left, then y downwards. Capitals stand between 0 and
/// c, small letters between 4 and c, and what hangs below ends at f.
const LETTERS: &[(char, &[&str])] = &[
    (' ', &[]),
    ('!', &["1018", "1b1c"]),
    ('"', &["1013", "3033"]),
    ('#', &["301c", "604c", "0474", "0878"]),
    ('$', &["7150200204265678 7a5c2c0b", "404d"]),
    ('%', &["1002143210", "685a6c8a68", "0c80"]),
    ('&', &["7c122040 42060a2c4c78"]),
    ('\'', &["1013"]),
    ('(', &["3013193d"]),
    (')', &["0023290d"]),
    ('*', &["3238", "0367", "6307"]),
    ('+', &["343a", "0767"]),
    (',', &["1b1c0e"]),
    ('-', &["0848"]),
    ('.', &["1b1c"]),
    ('/', &["0d50"]),
    ('0', &["20020a2c4c6a624020"]),
    ('1', &["12303c", "1c5c"]),
    ('2', &["0220406264 0c6c"]),
    ('3', &["02204062644626", "46686a4c2c0a"]),
    ('4', &["5c500878"]),
    ('5', &["60100545676a4c2c0a"]),
    ('6', &["6030030a2c4c6a67452507"]),
    ('7', &["00602c"]),
    ('8', &["260402204062644626080a2c4c6a6846"]),
    ('9', &["0c3c696240200205274765"]),
    (':', &["1617", "1b1c"]),
    (';', &["1617", "1b1c0e"]),
    ('<', &["54085c"]),
    ('=', &["0666", "0a6a"]),
    ('>', &["04580c"]),
    ('?', &["022040626437 39", "3b3c"]),
    ('@', &["68462 84a686a8a84602002 0a2c6c"]),
    ('A', &["0c408c", "1979"]),
    ('B', &["0c005062645606", "56787a5c0c"]),
    ('C', &["725020020a2c5c7a"]),
    ('D', &["0c004073794c0c"]),
    ('E', &["60000c6c", "0656"]),
    ('F', &["60000c", "0656"]),
    ('G', &["725020020a2c5c7a7646"]),
    ('H', &["000c", "707c", "0676"]),
    ('I', &["101c"]),
    ('J', &["505a3c1c0a"]),
    ('K', &["000c", "7007", "257c"]),
    ('L', &["000c6c"]),
    ('M', &["0c0046808c"]),
    ('N', &["0c007c70"]),
    ('O', &["20020a2c6c8a826020"]),
    ('P', &["0c005072755707"]),
    ('Q', &["20020a2c6c8a826020", "598d"]),
    ('R', &["0c005072755707", "477c"]),
    ('S', &["71502002042656787a5c2c0b"]),
    ('T', &["0080", "404c"]),
    ('U', &["000a2c5c7a70"]),
    ('V', &["004c80"]),
    ('W', &["003c537ca0"]),
    ('X', &["007c", "700c"]),
    ('Y', &["004680", "464c"]),
    ('Z', &["00700c7c"]),
    ('[', &["30101d3d"]),
    ('\\', &["005d"]),
    (']', &["00202d0d"]),
    ('^', &["043064"]),
    ('_', &["0e6e"]),
    ('`', &["0012"]),
    ('a', &["152444565c", "572709 0a1c3c5a"]),
    ('b', &["000c", "06244466 6a4c2c0a"]),
    ('c', &["654424060a2c4c6b"]),
    ('d', &["606c", "664424060a2c4c6a"]),
    ('e', &["08686644 24060a2c4c6b"]),
    ('f', &["5040222c", "0444"]),
    ('g', &["646d4f1f", "66442406092b4b69"]),
    ('h', &["000c", "062444666c"]),
    ('i', &["141c", "1011"]),
    ('j', &["242d1f0f", "2021"]),
    ('k', &["000c", "5409", "275c"]),
    ('l', &["101c"]),
    ('m', &["040c", "061434464c", "465474868c"]),
    ('n', &["040c", "062444666c"]),
    ('o', &["24060a2c4c6a664424"]),
    ('p', &["040f", "062444666a4c2c0a"]),
    ('q', &["646f", "664424060a2c4c6a"]),
    ('r', &["040c", "062444"]),
    ('s', &["554414050718 48595b4c1c0b"]),
    ('t', &["212a3c4c", "0444"]),
    ('u', &["040a2c4c6a", "646c"]),
    ('v', &["043c64"]),
    ('w', &["042c466c84"]),
    ('x', &["045c", "540c"]),
    ('y', &["043c", "643c1f0f"]),
    ('z', &["04540c5c"]),
    ('{', &["402125062 72c4d"]),
    ('|', &["101e"]),
    ('}', &["002125462 72c0d"]),
    ('~', &["07254867"]),
    ('·', &["1718"]),
    ('×', &["055b", "550b"]),
    ('↑', &["3c30", "043064"]),
];
/// What stands for a letter that is not there.
const UNKNOWN: &[&str] = &["00606c0c00"];
/// Of the size of the text.
const UNIT: f64 = 0.058;
/// Between the widest points of neighbours, and how wide a blank is.
const GAP_UNITS: f64 = 2.8;
const BLANK_UNITS: f64 = 4.0;
/// Units from the top of a capital to the line it stands on.
const BASELINE_UNITS: f64 = 12.0;

type Line = Vec<(f64, f64)>;

/// The lines of a text that begins at 0 and stands on 0, and how wide it is.
pub fn lines(text: &str, size: f64) -> (Vec<Line>, f64) {
    let unit = size * UNIT;
    let (mut lines, mut at) = (Vec::new(), 0.0);
    for letter in text.chars() {
        let strokes = LETTERS.iter().find(|(known, _)| *known == letter).map_or(UNKNOWN, |(_, strokes)| strokes);
        let mut widest = if strokes.is_empty() { BLANK_UNITS - GAP_UNITS } else { 0.0 };
        for stroke in strokes {
            let points = points(stroke);
            widest = points.iter().fold(widest, |widest, (x, _)| widest.max(*x));
            lines.push(points.iter().map(|(x, y)| ((at + x) * unit, (y - BASELINE_UNITS) * unit)).collect());
        }
        at += widest + GAP_UNITS;
    }
    (lines, (at - GAP_UNITS).max(0.0) * unit)
}

fn points(stroke: &str) -> Line {
    let digits: Vec<f64> = stroke.chars().filter_map(|c| c.to_digit(16)).map(f64::from).collect();
    digits.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_letter_is_whole() {
        for letter in ' '..='~' {
            assert!(LETTERS.iter().any(|(known, _)| *known == letter), "{letter}");
        }
        for (letter, strokes) in LETTERS {
            for stroke in *strokes {
                let digits = stroke.chars().filter(char::is_ascii_hexdigit).count();
                let others = stroke.chars().filter(|c| !c.is_ascii_hexdigit() && *c != ' ').count();
                assert_eq!((digits % 2, others, digits >= 4), (0, 0, true), "{letter}");
            }
        }
    }

    #[test]
    fn texts_have_the_width_of_their_letters() {
        let width = |text: &str| lines(text, 12.0).1;
        assert_eq!(width(""), 0.0);
        assert!(width("WW") > width("ii") && (width("ab c") - lines("c ba", 12.0).1).abs() < 1e-9);
        assert_eq!(lines("ä", 10.0).0.len(), 1, "a box");
    }
}
