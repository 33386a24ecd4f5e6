//! Tables with aligned columns.

#[derive(Clone, Copy, Debug)]
pub struct Column {
    head: &'static str,
    right: bool,
}

impl Column {
    /// Words.
    pub const fn left(head: &'static str) -> Self {
        Self { head, right: false }
    }

    /// Numbers.
    pub const fn right(head: &'static str) -> Self {
        Self { head, right: true }
    }
}

#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) -> &mut Self {
        let mut cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
        self
    }
}

/// The whole table, without a line break at the end.
impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let heads: Vec<String> = self.columns.iter().map(|column| column.head.to_owned()).collect();
        let all: Vec<&Vec<String>> = std::iter::once(&heads).chain(&self.rows).collect();
        let width = |index: usize| all.iter().map(|row| row[index].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..heads.len()).map(width).collect();
        for (number, row) in all.iter().enumerate() {
            let mut line = String::new();
            for ((cell, column), &width) in row.iter().zip(&self.columns).zip(&widths) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                line.push_str(&if column.right { format!("{cell:>width$}") } else { format!("{cell:<width$}") });
            }
            let end = if number + 1 == all.len() { "" } else { "\n" };
            write!(f, "{}{end}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[Column::left("category"), Column::right("planned"), Column::left("note")]);
        table.row(["weights", "512.0 MiB", "größer"]).row(["loss", "8.0 KiB"]);
        assert_eq!(
            table.to_string(),
            "category    planned  note\n\
             weights   512.0 MiB  größer\n\
             loss        8.0 KiB"
        );
    }
}
