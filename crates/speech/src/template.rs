//! A sentence with holes, written as the format string in the source that makes it.

/// Literal text and holes in turn: there is one literal more than there are holes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pub literals: Vec<String>,
    pub holes: Vec<Hole>,
}

/// What a value is put into. Holes that touch are one, since nobody can tell where the first ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hole {
    pub names: Vec<String>,
    /// Made with a precision, so a number stands there.
    pub is_number: bool,
    /// Written `{name!}`: words alone are translated there, too.
    pub is_words: bool,
}

impl Template {
    /// Reads a format string. A brace that is no part of a hole is one.
    pub fn parse(text: &str) -> Self {
        let mut template = Self { literals: vec![String::new()], holes: Vec::new() };
        let (mut counted, mut rest) = (0, text);
        while let Some(at) = rest.find(['{', '}']) {
            template.literal(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(behind) = rest.strip_prefix(brace) {
                template.literal(brace);
                rest = behind;
                continue;
            }
            let Some(end) = rest.find('}').filter(|_| brace == "{") else {
                template.literal(brace);
                continue;
            };
            template.hole(&rest[..end], &mut counted);
            rest = &rest[end + 1..];
        }
        template.literal(rest);
        template
    }

    fn literal(&mut self, text: &str) {
        self.literals.last_mut().expect("never empty").push_str(text);
    }

    fn hole(&mut self, inside: &str, counted: &mut usize) {
        let (inside, is_words) = inside.strip_suffix('!').map_or((inside, false), |inside| (inside, true));
        let (name, format) = inside.split_once(':').unwrap_or((inside, ""));
        let name = if name.is_empty() {
            *counted += 1;
            (*counted - 1).to_string()
        } else {
            name.to_owned()
        };
        let is_number = format.contains('.') && format.chars().all(|c| c.is_ascii_digit() || "<>^+.".contains(c));
        let touches = self.literals.last().is_some_and(String::is_empty);
        match self.holes.last_mut().filter(|_| touches) {
            Some(hole) => {
                hole.names.push(name);
                hole.is_number = false;
            }
            None => {
                self.holes.push(Hole { names: vec![name], is_number, is_words });
                self.literals.push(String::new());
            }
        }
    }

    /// The same for all templates that make the same sentences, whatever their holes are called.
    pub fn shape(&self) -> String {
        self.literals.join("\u{0}")
    }

    /// Letters that have to be there: the more, the surer that a sentence was made by this template.
    pub fn letters(&self) -> usize {
        self.literals.iter().flat_map(|literal| literal.chars()).filter(|c| c.is_alphabetic()).count()
    }

    /// Whether it is a word that may as well be a name.
    pub fn is_word(&self) -> bool {
        self.holes.is_empty() && !self.literals[0].contains(' ')
    }

    /// Whether it goes on with a sentence that another template began.
    pub fn is_tail(&self) -> bool {
        self.literals[0].starts_with([' ', ',', ';'])
    }

    /// The sentence with these values. Between a Chinese character and a Latin one there is a space.
    pub fn filled(&self, value: impl Fn(&Hole) -> String) -> String {
        let mut text = self.literals[0].clone();
        for (hole, literal) in self.holes.iter().zip(&self.literals[1..]) {
            append(&mut text, &value(hole));
            append(&mut text, literal);
        }
        text
    }
}

fn append(text: &mut String, more: &str) {
    let is_chinese = |c: char| ('\u{4e00}'..='\u{9fff}').contains(&c);
    let apart = |a: char, b: char| is_chinese(a) && b.is_ascii_alphanumeric();
    if let (Some(last), Some(next)) = (text.chars().last(), more.chars().next())
        && (apart(last, next) || apart(next, last))
    {
        text.push(' ');
    }
    text.push_str(more);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_strings_are_read() {
        let template = Template::parse("{} of {name}: {ms:.1} ms, {{{0:?}}}");
        assert_eq!(template.literals, ["", " of ", ": ", " ms, {", "}"]);
        let names: Vec<&str> = template.holes.iter().map(|hole| hole.names[0].as_str()).collect();
        assert_eq!(names, ["0", "name", "ms", "0"]);
        assert_eq!(template.holes.iter().map(|hole| hole.is_number).collect::<Vec<_>>(), [false, false, true, false]);
        let touching = Template::parse("in {}{saved}; {x!}");
        assert_eq!(touching.holes[0].names, ["0", "saved"]);
        assert!(touching.holes[1].is_words && touching.literals == ["in ", "; ", ""]);
        assert_eq!(Template::parse("a } b { c").literals, ["a } b { c"]);
    }

    #[test]
    fn chinese_and_latin_stand_apart() {
        let filled = |text: &str, value: &str| Template::parse(text).filled(|_| value.to_owned());
        assert_eq!(filled("增加{}内存", "GPU"), "增加 GPU 内存");
        assert_eq!(filled("增加{}内存", "主机"), "增加主机内存");
        assert_eq!(filled("在 {} 中，{}", "a"), "在 a 中，a");
    }

    #[test]
    fn holes_have_no_part_in_the_shape() {
        let shape = |text: &str| Template::parse(text).shape();
        assert_eq!(shape("cannot write {}: {error}"), shape("cannot write {shown}: {}"));
        assert_ne!(shape("cannot write {}"), shape("cannot read {}"));
    }
}
