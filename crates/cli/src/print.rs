//! Standard output and standard error.
//!
//! Module code controls some of the printed text: plans, logs, outputs, parts of the status. On a terminal, control
//! characters in this text could hide or change what the terminal displays, so they are replaced. Pipes and files get
//! the bytes unchanged.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use crate::error::Error;

/// Prints a line.
pub(crate) fn line(text: &str) -> Result<(), Error> {
    bytes(format!("{text}\n").as_bytes())
}

/// Prints `bytes`. If standard output is a terminal, replaces control characters, see [`visible`].
pub(crate) fn bytes(bytes: &[u8]) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    let shown = shown(bytes, out.is_terminal());
    out.write_all(&shown)
        .and_then(|()| out.flush())
        .map_err(Error::Print)
}

/// Prints a line on standard error. If standard error is a terminal, replaces control characters, see [`visible`].
pub(crate) fn note(text: &str) {
    if io::stderr().is_terminal() {
        eprintln!("{}", visible(text));
    } else {
        eprintln!("{text}");
    }
}

/// Printer for text that is received in parts, for example a log. A UTF-8 character may be split between two parts.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// First bytes of the incomplete character at the end of the previous part, at most 3 bytes.
    rest: Vec<u8>,
}

impl Parts {
    /// Prints `part` up to its last complete character.
    pub(crate) fn add(&mut self, part: &[u8]) -> Result<(), Error> {
        bytes(&self.complete(part))
    }

    /// Prints the bytes of an incomplete character at the end of the last part.
    pub(crate) fn end(self) -> Result<(), Error> {
        bytes(&self.rest)
    }

    /// Returns the bytes in `rest`, followed by `part` up to its last complete character. Moves the remaining bytes to
    /// `rest`.
    fn complete(&mut self, part: &[u8]) -> Vec<u8> {
        let mut text = std::mem::take(&mut self.rest);
        text.extend_from_slice(part);
        self.rest = text.split_off(text.len().saturating_sub(incomplete(&text)));
        text
    }
}

/// Returns the size of the incomplete character at the end of `bytes`, in bytes. 0 if the last character is complete or
/// invalid.
fn incomplete(bytes: &[u8]) -> usize {
    let invalid = bytes
        .utf8_chunks()
        .last()
        .map(|chunk| chunk.invalid())
        .unwrap_or_default();
    match std::str::from_utf8(invalid) {
        Err(error) if error.error_len().is_none() => invalid.len(),
        Ok(_) | Err(_) => 0,
    }
}

/// Returns the bytes to print: `bytes` unchanged, or the result of [`visible`] for a terminal.
fn shown(bytes: &[u8], is_terminal: bool) -> Cow<'_, [u8]> {
    if is_terminal {
        Cow::Owned(visible(&String::from_utf8_lossy(bytes)).into_bytes())
    } else {
        Cow::Borrowed(bytes)
    }
}

/// Replaces control characters, except line feed and tab, and controls of bidirectional text by U+FFFD. Does not
/// preserve colours: the engine prints none, because the runner starts it with `-no-color`.
pub(crate) fn visible(text: &str) -> String {
    text.chars()
        .map(|c| {
            if is_interpreted(c) {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        })
        .collect()
}

/// Whether a terminal interprets `c` instead of displaying it: C0, DEL and C1 except line feed and tab, and embeddings,
/// overrides and isolates of bidirectional text
/// (<https://www.unicode.org/reports/tr9/#Directional_Formatting_Characters>).
fn is_interpreted(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        other => other.is_control(),
    }
}

/// Formats `rows` as a table. Each column is as wide as its widest cell.
pub(crate) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells: Vec<_> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        format!("{}\n", cells.join("   ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::text(b"\ta c\n\n", "\ta c\n\n")]
    #[case::other_scripts("é 漢 ש\n".as_bytes(), "é 漢 ש\n")]
    #[case::clipboard(b"\x1b]52;c;eA==\x07", "\u{fffd}]52;c;eA==\u{fffd}")]
    #[case::unterminated_string(b"\x1bPplan", "\u{fffd}Pplan")]
    #[case::hidden_text(b"\x1b[8mplan", "\u{fffd}[8mplan")]
    #[case::colour(b"\x1b[31mplan", "\u{fffd}[31mplan")]
    #[case::overwritten(b"a\rb\x08c\x7f", "a\u{fffd}b\u{fffd}c\u{fffd}")]
    #[case::c1("\u{90}a\u{9b}8m\u{85}".as_bytes(), "\u{fffd}a\u{fffd}8m\u{fffd}")]
    #[case::c1_without_utf_8(b"\x9b8m", "\u{fffd}8m")]
    #[case::direction("\u{202e}a\u{2066}".as_bytes(), "\u{fffd}a\u{fffd}")]
    fn control_characters_are_replaced_on_a_terminal(#[case] bytes: &[u8], #[case] wanted: &str) {
        assert_eq!(&*shown(bytes, true), wanted.as_bytes());
        assert_eq!(&*shown(bytes, false), bytes);
    }

    #[test]
    fn control_characters_except_tab_and_newline_are_replaced() {
        let kept: String = ('\0'..='\u{9f}').filter(|c| c.is_control()).collect();
        let shown = visible(&kept);
        let kept: Vec<char> = shown.chars().filter(|c| c.is_control()).collect();
        assert_eq!(kept, ['\t', '\n']);
        assert_eq!(shown.chars().count(), 65);
    }

    #[test]
    fn characters_split_between_parts_are_printed_whole() {
        let mut parts = Parts::default();
        let text = "é\u{9b}漢\u{1f600}a".as_bytes();
        let printed: Vec<Vec<u8>> = text.chunks(1).map(|part| parts.complete(part)).collect();
        assert_eq!(printed.concat(), text);
        let is_whole = |part: &Vec<u8>| std::str::from_utf8(part).is_ok();
        assert!(printed.iter().all(is_whole), "{printed:?}");
        assert_eq!(parts.complete(b"a\xffb\xe6"), b"a\xffb");
        assert_eq!(parts.complete(b"\xff"), b"\xe6\xff");
        assert_eq!(parts.complete(b"\xe6\xbc"), b"");
        assert_eq!(parts.rest, b"\xe6\xbc");
    }
}
