//! Formatting of errors.

use serde_json::error::Category;

/// Describes the position of a JSON error. Omits the error's own text, which may quote values (rule 15).
pub fn place_in_json(error: &serde_json::Error) -> String {
    let problem = match error.classify() {
        Category::Data => "unexpected value",
        Category::Eof => "unexpected end",
        Category::Syntax | Category::Io => "invalid JSON",
    };
    format!(
        "{problem} at line {}, column {}",
        error.line(),
        error.column()
    )
}

/// Formats an error with its chain of sources.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
