//! Tables with aligned columns.

use plimsoll_run::visible;
use plimsoll_speech::Language;
use unicode_width::UnicodeWidthStr;

use super::wrap::words;

#[derive(Clone, Copy, Debug)]
pub struct Column {
    head: &'static str,
    right: bool,
    /// What stands below the head is nobody's word of ours, such as a name or what a model wrote.
    names: bool,
}

impl Column {
    /// Words.
    pub const fn left(head: &'static str) -> Self {
        Self { head, right: false, names: false }
    }

    /// Numbers.
    pub const fn right(head: &'static str) -> Self {
        Self { head, right: true, names: false }
    }

    /// Texts that stay as they are in every language.
    pub const fn names(head: &'static str) -> Self {
        Self { head, right: false, names: true }
    }

    fn said(&self, cell: &str, language: Language) -> String {
        if self.names { cell.to_owned() } else { language.word(cell).into_owned() }
    }
}

#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

/// Between columns.
const GAP: usize = 2;
/// No column of words is made narrower.
const WORDS_MIN: usize = 12;

impl Table {
    pub fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty. Whatever is in a cell, it is one line.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) -> &mut Self {
        let mut cells: Vec<String> = cells.into_iter().map(|cell| visible(&cell.into())).collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
        self
    }

    /// The whole table, without a line break at the end. Where there is a width, columns of words are wrapped until the
    /// table fits.
    pub fn within(&self, width: Option<usize>, language: Language) -> String {
        let heads: Vec<String> = self.columns.iter().map(|column| language.label(column.head).to_owned()).collect();
        let said = |row: &Vec<String>| {
            let cells = row.iter().zip(&self.columns);
            cells.map(|(cell, column)| column.said(cell, language)).collect::<Vec<_>>()
        };
        let rows: Vec<Vec<String>> = std::iter::once(heads).chain(self.rows.iter().map(said)).collect();
        let widest = |index: usize| rows.iter().map(|row| row[index].width()).max().unwrap_or(0);
        let mut widths: Vec<usize> = (0..self.columns.len()).map(widest).collect();
        if let Some(width) = width {
            self.narrow(&mut widths, width);
        }
        let lines: Vec<String> = rows.iter().flat_map(|row| self.lines(row, &widths)).collect();
        lines.join("\n")
    }

    /// Takes from the last column if that alone makes the table fit, since it holds remarks; else from the widest columns
    /// of words until all columns fit, or no more can be taken.
    fn narrow(&self, widths: &mut [usize], width: usize) {
        let total = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
        let excess = total(widths).saturating_sub(width);
        if let (Some(last), Some(column)) = (widths.last_mut(), self.columns.last())
            && !column.right
            && *last >= excess + WORDS_MIN
        {
            *last -= excess;
            return;
        }
        loop {
            let total = total(widths);
            let of_words = (0..widths.len()).filter(|&i| !self.columns[i].right && widths[i] > WORDS_MIN);
            let Some(widest) = of_words.max_by_key(|&i| widths[i]).filter(|_| total > width) else { return };
            widths[widest] -= 1;
        }
    }

    /// A row, on as many lines as its highest cell takes.
    fn lines(&self, row: &[String], widths: &[usize]) -> Vec<String> {
        let cells: Vec<Vec<String>> = row.iter().zip(widths).map(|(cell, &width)| broken(cell, width)).collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(1);
        let line = |index: usize| {
            let mut line = String::new();
            for ((cell, column), &width) in cells.iter().zip(&self.columns).zip(widths) {
                let text = cell.get(index).map_or("", String::as_str);
                let pad = " ".repeat(width.saturating_sub(text.width()));
                let gap = if line.is_empty() { "" } else { "  " };
                line += &if column.right { format!("{gap}{pad}{text}") } else { format!("{gap}{text}{pad}") };
            }
            line.trim_end().to_owned()
        };
        (0..height).map(line).collect()
    }
}

/// A cell in lines of at most `width`; words that are longer are broken.
fn broken(cell: &str, width: usize) -> Vec<String> {
    if cell.width() <= width {
        return vec![cell.to_owned()];
    }
    let mut lines = Vec::new();
    for line in words(cell, width, width) {
        let mut part = String::new();
        for c in line.chars() {
            if part.width() + c.to_string().width() > width {
                lines.push(std::mem::take(&mut part));
            }
            part.push(c);
        }
        lines.push(part);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[Column::left("category"), Column::right("planned"), Column::left("note")]);
        table.row(["weights", "512.0 MiB", "größer 中"]).row(["loss", "8.0 KiB"]);
        let expected = "category    planned  note\n\
             weights   512.0 MiB  größer 中\n\
             loss        8.0 KiB";
        assert_eq!(table.within(None, Language::English), expected);
        assert_eq!(table.within(Some(80), Language::English), expected);
    }

    #[test]
    fn words_are_wrapped_and_numbers_are_not() {
        let mut table = Table::new(&[Column::left("plan"), Column::right("GPU"), Column::left("")]);
        table.row(["fastest", "512.00 GiB", "exceeds the budget by 500.00 GiB"]).row(["lowest", "1.00 GiB", ""]);
        assert_eq!(
            table.within(Some(36), Language::English),
            "plan            GPU\n\
             fastest  512.00 GiB  exceeds the\n\
             \x20                    budget by\n\
             \x20                    500.00 GiB\n\
             lowest     1.00 GiB"
        );
        assert!(table.within(Some(1), Language::English).contains("512.00 GiB"), "nothing is cut");
    }

    #[test]
    fn a_cell_is_one_line() {
        let mut table = Table::new(&[Column::left("prompt"), Column::left("answer")]);
        table.row(["one\ntwo", "\x1b[31mred"]);
        assert_eq!(table.within(None, Language::English), "prompt   answer\none↵two  \u{FFFD}[31mred");
        let mut table = Table::new(&[Column::left("word")]);
        table.row(["abcdefghijklmnopqrstuvwxyz"]);
        assert_eq!(table.within(Some(13), Language::English), "word\nabcdefghijklm\nnopqrstuvwxyz");
    }
}
