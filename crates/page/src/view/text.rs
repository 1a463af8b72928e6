//! Untrusted text: output of modules, names and messages.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Replaces characters of `text` that would change how other characters are displayed. ANSI colour sequences (`ESC [ … m`) are removed. Other
/// control characters except line feed and tab, and characters that control the text direction, are replaced by escapes such as `\u{202e}`.
/// A carriage return before a line feed is removed.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    let Some(first) = text.find(is_hidden) else {
        return Cow::Borrowed(text);
    };
    let (start, mut rest) = text.split_at(first);
    let mut visible = String::with_capacity(text.len() + 16);
    visible.push_str(start);
    while let Some(character) = rest.chars().next() {
        if let Some(after) = after_colour(rest) {
            rest = after;
            continue;
        }
        let after = rest.get(character.len_utf8()..).unwrap_or_default();
        if !is_hidden(character) {
            let end = rest.find(is_hidden).unwrap_or(rest.len());
            let (plain, hidden) = rest.split_at(end);
            visible.push_str(plain);
            rest = hidden;
            continue;
        }
        if character != '\r' || !after.starts_with('\n') {
            // Writing to a String does not fail.
            let _ = write!(visible, "{}", character.escape_unicode());
        }
        rest = after;
    }
    Cow::Owned(visible)
}

/// Returns the text after the ANSI colour sequence at the beginning of `text`.
fn after_colour(text: &str) -> Option<&str> {
    let parameters = text.strip_prefix("\u{1b}[")?;
    parameters
        .trim_start_matches(|character: char| {
            character.is_ascii_digit() || matches!(character, ';' | ':')
        })
        .strip_prefix('m')
}

/// Whether `character` is a control character except line feed and tab, or controls the text direction.
fn is_hidden(character: char) -> bool {
    (character.is_control() && !matches!(character, '\n' | '\t'))
        || matches!(
            character,
            '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'
                | '\u{2029}'
                | '\u{202a}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
        )
}

/// Returns the beginning of `text` that is at most `limit` bytes as HTML, with `…` if it was cut.
pub(crate) fn beginning(text: &str, limit: usize) -> Cow<'_, str> {
    let text = visible(text);
    let mut size = 0;
    let end = text.char_indices().find(|(_, character)| {
        size += match character {
            '&' => "&amp;".len(),
            '<' | '>' => "&lt;".len(),
            '"' => "&quot;".len(),
            other => other.len_utf8(),
        };
        size > limit
    });
    match end {
        None => text,
        Some((end, _)) => Cow::Owned(format!("{}…", text.get(..end).unwrap_or_default())),
    }
}

/// Returns a revision in the length that users recognise: 8 characters of a commit id, 12 characters of a digest.
pub(crate) fn short_revision(revision: &str) -> &str {
    let (digest, length) = match revision.strip_prefix("sha256:") {
        Some(digest) => (digest, 12),
        None => (revision, 8),
    };
    digest
        .get(..digest.floor_char_boundary(length))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain("a\tb\nc é", "a\tb\nc é")]
    #[case::colours("\u{1b}[1;31mError\u{1b}[0m: x", "Error: x")]
    #[case::cursor("a\u{1b}[2Jb", "a\\u{1b}[2Jb")]
    #[case::cut_colour("a\u{1b}[3", "a\\u{1b}[3")]
    #[case::bidi("a\u{202e}b\u{2066}\u{200f}", "a\\u{202e}b\\u{2066}\\u{200f}")]
    #[case::c1("\u{9b}31m", "\\u{9b}31m")]
    #[case::carriage_return("a\r\nb\rc", "a\nb\\u{d}c")]
    fn visible_text_has_no_hidden_characters(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(visible(text), expected);
    }

    #[rstest]
    #[case("short", 10, "short")]
    #[case("<<<<", 8, "<<…")]
    #[case("éé", 3, "é…")]
    fn beginning_is_limited_by_size_of_html(
        #[case] text: &str,
        #[case] limit: usize,
        #[case] expected: &str,
    ) {
        assert_eq!(beginning(text, limit), expected);
    }
}
