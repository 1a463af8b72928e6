//! Standard output.

use std::io::{self, Write};

use crate::error::Error;

/// Prints a line.
pub(crate) fn line(text: &str) -> Result<(), Error> {
    bytes(format!("{text}\n").as_bytes())
}

/// Prints `bytes` unchanged.
pub(crate) fn bytes(bytes: &[u8]) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .map_err(Error::Print)
}

/// Formats `rows` as a table. Each column is as wide as its widest cell.
pub(crate) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths);
        let cells: Vec<_> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        format!("{}\n", cells.join("   ").trim_end())
    };
    rows.iter().map(line).collect()
}
