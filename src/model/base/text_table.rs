//! Text tables for terminals: aligned columns, words never truncated, content not interpreted.

/// Gap between two columns.
const GAP: &str = "   ";

/// Formats a table with these columns. The last column is not padded.
pub fn table(columns: &[&str], rows: &[Vec<String>]) -> String {
    let mut lines = vec![columns.iter().map(|column| (*column).to_owned()).collect::<Vec<_>>()];
    lines.extend(rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()));
    let width = |at: usize| lines.iter().filter_map(|line| line.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns.len()).map(width).collect();
    let text = |line: &Vec<String>| {
        let cells: Vec<_> = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join(GAP).trim_end().to_owned() + "\n"
    };
    lines.iter().map(text).collect()
}

/// Cell on one line: external text may contain control characters, which a terminal would execute.
fn plain(cell: &str) -> String {
    let cell: String = cell.chars().map(|character| if character.is_control() { ' ' } else { character }).collect();
    if cell.is_empty() { "-".to_owned() } else { cell }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_control_characters_are_removed() {
        let rows = [vec!["a".to_owned(), "long one".to_owned(), "x".to_owned()], vec!["bbb".into(), String::new(), "\x1b[2J\nü".into()]];
        let text = table(&["A", "B", "C"], &rows);
        assert_eq!(text, "A     B          C\na     long one   x\nbbb   -           [2J ü\n");
    }
}
