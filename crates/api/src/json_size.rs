//! Size of JSON in memory. A parsed value takes up to 700 bytes. Example: 1 MiB of `[{"":0},{"":0},…]` takes 130 MiB.

/// Maximum number of values in a JSON text from an untrusted source. A text with more values is not parsed. 10,000 values take up to 7 MiB in
/// memory, plus the strings.
pub const VALUES: usize = 10_000;

/// Whether the JSON text has at most [`VALUES`] values.
pub fn is_small(text: &[u8]) -> bool {
    values(text) <= VALUES
}

/// Returns an upper bound of the number of values in JSON text: 1 plus the number of commas and opening brackets outside of strings. Does
/// not check that `text` is valid JSON.
pub fn values(text: &[u8]) -> usize {
    let mut count = 1;
    let mut in_text = false;
    let mut escaped = false;
    for byte in text {
        if escaped {
            escaped = false;
        } else if in_text {
            escaped = *byte == b'\\';
            in_text = *byte != b'"';
        } else {
            in_text = *byte == b'"';
            count += usize::from(matches!(byte, b',' | b'{' | b'['));
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_values_are_counted_outside_strings() {
        for (text, count) in [
            ("", 1),
            ("1", 1),
            ("[]", 2),
            ("[1,2]", 3),
            (r#"{"a":[{"b":1}]}"#, 4),
            (r#"{"a,[\"{":"\\","b":0}"#, 3),
        ] {
            assert_eq!(values(text.as_bytes()), count, "{text}");
        }
    }
}
