//! The picture for documents that take no vectors: pixels, in a PNG.

use std::io::Write;

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};

use plimsoll_speech::Language;

use super::drawing::{Anchor, HEIGHT, Shape, WIDTH, sheet};
use super::letters::lines;
use super::scene::PlanPicture;
use super::text::Text;

/// Pixels along a unit of the drawing.
const SCALE: f64 = 2.0;
const CHANNELS: usize = 3;
/// Of the size of a text.
const STROKE: f64 = 0.085;
const BOLD_STROKE: f64 = 0.125;
/// Stripes run from the lower left to the upper right, as in the SVG.
const STRIPES_APART: f64 = 6.0;
const STRIPE: f64 = 2.0;
const STRIPE_OPACITY: f64 = 0.6;
const DASH: f64 = 7.0;
const DASHES_APART: f64 = 11.0;

/// The schedule that trains, over the operators it runs; in English, since the letters here are Latin ones.
pub fn png(plan: &PlanPicture) -> Vec<u8> {
    let mut pixels = Pixels::new((WIDTH * SCALE) as usize, (HEIGHT * SCALE) as usize);
    for shape in &sheet(plan, &Text::of(Language::English)).shapes {
        pixels.put(shape);
    }
    encode(pixels.width, pixels.height, &pixels.values)
}

type Colour = [f64; CHANNELS];

struct Pixels {
    width: usize,
    height: usize,
    /// Row by row, red, green and blue.
    values: Vec<u8>,
}

impl Pixels {
    fn new(width: usize, height: usize) -> Self {
        Self { width, height, values: vec![255; width * height * CHANNELS] }
    }

    fn put(&mut self, shape: &Shape) {
        match shape {
            Shape::Area { x, y, width, height, fill, opacity } => {
                self.fill([*x, *y, *width, *height], colour(fill), |_, _| *opacity);
            }
            Shape::Stripes { x, y, width, height } => {
                let diagonal = |px: f64, py: f64| (px + py) / SCALE / std::f64::consts::SQRT_2 % STRIPES_APART;
                let stripe = |px: f64, py: f64| if diagonal(px, py) < STRIPE { STRIPE_OPACITY } else { 0.0 };
                self.fill([*x, *y, *width, *height], [255.0; CHANNELS], stripe);
            }
            Shape::Line { from, to, stroke, width, dashed } => {
                let half = width / 2.0;
                let (x, y) = (from.0.min(to.0) - half, from.1.min(to.1) - half);
                let size = ((from.0 - to.0).abs() + width, (from.1 - to.1).abs() + width);
                let along = |px: f64, py: f64| (px / SCALE - x).max(py / SCALE - y);
                let dash = |px: f64, py: f64| f64::from(!dashed || along(px, py) % DASHES_APART < DASH);
                self.fill([x, y, size.0, size.1], colour(stroke), dash);
            }
            Shape::Words { x, y, text, fill, size, anchor, bold } => {
                let (lines, width) = lines(text, *size);
                let left = match anchor {
                    Anchor::Start => *x,
                    Anchor::Middle => x - width / 2.0,
                    Anchor::End => x - width,
                };
                let stroke = size * if *bold { BOLD_STROKE } else { STROKE };
                for line in &lines {
                    let place = |(px, py): &(f64, f64)| ((left + px) * SCALE, (y + py) * SCALE);
                    let points: Vec<(f64, f64)> = line.iter().map(place).collect();
                    self.stroke(&points, stroke * SCALE, colour(fill));
                }
            }
        }
    }

    /// Every pixel as far as the area covers it; `opacity` is asked at its middle.
    fn fill(&mut self, [x, y, width, height]: [f64; 4], colour: Colour, opacity: impl Fn(f64, f64) -> f64) {
        let (left, right) = (x * SCALE, (x + width) * SCALE);
        let (top, bottom) = (y * SCALE, (y + height) * SCALE);
        let covered = |pixel: usize, from: f64, to: f64| (to.min(pixel as f64 + 1.0) - from.max(pixel as f64)).max(0.0);
        for py in range(top, bottom, self.height) {
            for px in range(left, right, self.width) {
                let part = covered(px, left, right) * covered(py, top, bottom);
                self.blend(px, py, colour, part * opacity(px as f64 + 0.5, py as f64 + 0.5));
            }
        }
    }

    /// A line with round ends and corners, in pixels.
    fn stroke(&mut self, points: &[(f64, f64)], thickness: f64, colour: Colour) {
        let reach = thickness / 2.0 + 1.0;
        let least = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).fold(f64::INFINITY, f64::min) - reach;
        let most = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).fold(f64::NEG_INFINITY, f64::max) + reach;
        let (rows, columns) = ((least(|p| p.1), most(|p| p.1)), (least(|p| p.0), most(|p| p.0)));
        for py in range(rows.0, rows.1, self.height) {
            for px in range(columns.0, columns.1, self.width) {
                let middle = (px as f64 + 0.5, py as f64 + 0.5);
                let nearest = points.windows(2).map(|ends| distance(middle, ends[0], ends[1]));
                let nearest = nearest.fold(f64::INFINITY, f64::min);
                self.blend(px, py, colour, (thickness / 2.0 + 0.5 - nearest).clamp(0.0, 1.0));
            }
        }
    }

    fn blend(&mut self, x: usize, y: usize, colour: Colour, opacity: f64) {
        let at = (y * self.width + x) * CHANNELS;
        for (value, paint) in self.values[at..at + CHANNELS].iter_mut().zip(colour) {
            *value = (f64::from(*value) + (paint - f64::from(*value)) * opacity).round() as u8;
        }
    }
}

/// The pixels that a stretch touches, of so many.
fn range(from: f64, to: f64, count: usize) -> std::ops::Range<usize> {
    from.floor().max(0.0) as usize..(to.ceil().max(0.0) as usize).min(count)
}

/// From a point to the nearest one between two ends.
fn distance((x, y): (f64, f64), (ax, ay): (f64, f64), (bx, by): (f64, f64)) -> f64 {
    let (dx, dy) = (bx - ax, by - ay);
    let squared = dx * dx + dy * dy;
    let along = if squared > 0.0 { (((x - ax) * dx + (y - ay) * dy) / squared).clamp(0.0, 1.0) } else { 0.0 };
    (x - ax - along * dx).hypot(y - ay - along * dy)
}

/// Of `#rrggbb`.
fn colour(text: &str) -> Colour {
    [1, 3, 5].map(|at| u8::from_str_radix(&text[at..at + 2], 16).map_or(0.0, f64::from))
}

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
/// Eight bits for each of three channels, and no interlacing.
const FORMAT: [u8; 5] = [8, 2, 0, 0, 0];
/// Each row is written as what differs from the one above.
const FILTER_UP: u8 = 2;

fn encode(width: usize, height: usize, values: &[u8]) -> Vec<u8> {
    let row_bytes = width * CHANNELS;
    let mut rows = ZlibEncoder::new(Vec::new(), Compression::best());
    let mut above = vec![0; row_bytes];
    for row in values.chunks_exact(row_bytes) {
        let differences: Vec<u8> = row.iter().zip(&above).map(|(value, above)| value.wrapping_sub(*above)).collect();
        rows.write_all(&[FILTER_UP]).and_then(|()| rows.write_all(&differences)).expect("memory takes everything");
        above.copy_from_slice(row);
    }
    let rows = rows.finish().expect("memory takes everything");
    let mut png = SIGNATURE.to_vec();
    let size = [(width as u32).to_be_bytes(), (height as u32).to_be_bytes()].concat();
    chunk(&mut png, b"IHDR", &[&size[..], &FORMAT].concat());
    chunk(&mut png, b"IDAT", &rows);
    chunk(&mut png, b"IEND", &[]);
    png
}

fn chunk(png: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    let mut sum = Crc::new();
    sum.update(kind);
    sum.update(data);
    png.extend_from_slice(&(data.len() as u32).to_be_bytes());
    png.extend_from_slice(kind);
    png.extend_from_slice(data);
    png.extend_from_slice(&sum.sum().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::ZlibDecoder;

    use super::*;

    /// Width, height and the values of a PNG as it is written here.
    fn decode(png: &[u8]) -> (usize, usize, Vec<u8>) {
        let mut rest = png.strip_prefix(SIGNATURE).expect("a PNG");
        let (mut size, mut packed) = ((0, 0), Vec::new());
        while !rest.is_empty() {
            let number = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().expect("four bytes"));
            let length = number(0) as usize;
            let (kind, data) = (&rest[4..8], &rest[8..8 + length]);
            let mut sum = Crc::new();
            sum.update(&rest[4..8 + length]);
            assert_eq!(number(8 + length), sum.sum());
            match kind {
                b"IHDR" => size = (number(8) as usize, number(12) as usize),
                b"IDAT" => packed.extend_from_slice(data),
                _ => assert_eq!((kind, length), (b"IEND".as_slice(), 0)),
            }
            rest = &rest[12 + length..];
        }
        let mut rows = Vec::new();
        ZlibDecoder::new(&packed[..]).read_to_end(&mut rows).expect("rows");
        let row_bytes = size.0 * CHANNELS;
        let (mut values, mut above) = (Vec::new(), vec![0u8; row_bytes]);
        for row in rows.chunks_exact(row_bytes + 1) {
            assert_eq!(row[0], FILTER_UP);
            above = row[1..].iter().zip(&above).map(|(difference, above)| above.wrapping_add(*difference)).collect();
            values.extend_from_slice(&above);
        }
        (size.0, size.1, values)
    }

    #[test]
    fn what_is_encoded_comes_back() {
        let values: Vec<u8> = (0..7 * 5 * CHANNELS).map(|n| (n * n % 251) as u8).collect();
        assert_eq!(decode(&encode(7, 5, &values)), (7, 5, values));
    }

    #[test]
    fn shapes_cover_their_pixels() {
        let mut pixels = Pixels::new(20, 20);
        let of = |pixels: &Pixels, x: usize, y: usize| pixels.values[(y * 20 + x) * CHANNELS];
        // From pixel 2 to the middle of pixel 6, black.
        let (x, y, width, height, opacity) = (1.0, 1.0, 2.25, 2.0, 1.0);
        pixels.put(&Shape::Area { x, y, width, height, fill: "#000000", opacity });
        assert_eq!([1, 2, 5, 6, 7].map(|x| of(&pixels, x, 3)), [255, 0, 0, 128, 255]);
        let line = |dashed| Shape::Line { from: (0.0, 8.0), to: (9.0, 8.0), stroke: "#000000", width: 1.0, dashed };
        pixels.put(&line(true));
        assert_eq!((of(&pixels, 4, 15), of(&pixels, 4, 16), of(&pixels, 4, 17)), (0, 0, 255));
        assert_eq!(of(&pixels, 16, 15), 255, "between two dashes");
        pixels.put(&line(false));
        assert_eq!(of(&pixels, 16, 15), 0);
        let before = pixels.values.clone();
        let words = |text: &str| Shape::Words {
            x: 0.0,
            y: 7.0,
            text: text.to_owned(),
            fill: "#ff0000",
            size: 8.0,
            anchor: Anchor::Start,
            bold: false,
        };
        pixels.put(&words("   "));
        assert_eq!(pixels.values, before);
        pixels.put(&words("l"));
        assert_ne!(pixels.values, before);
        // What lies beyond the edge is left out.
        pixels.put(&Shape::Area { x: -5.0, y: 9.5, width: 50.0, height: 50.0, fill: "#0000ff", opacity: 1.0 });
        assert_eq!(of(&pixels, 19, 19), 0);
    }
}
