//! Paths of the pages.

use std::fmt::Write as _;

use crate::actions::Action;

/// Returns `text` percent-encoded as a segment of a path.
pub(crate) fn segment(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(byte));
        } else {
            // Writing to a String does not fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Returns the path of the resource `name` in `namespace`.
pub(crate) fn resource(namespace: &str, name: &str) -> String {
    format!("/ns/{}/tf/{}", segment(namespace), segment(name))
}

/// Returns the path of run `number`.
pub(crate) fn run(namespace: &str, name: &str, number: i64) -> String {
    format!("{}/runs/{number}", resource(namespace, name))
}

/// Returns the path of the form of `action`.
pub(crate) fn action(namespace: &str, name: &str, action: Action) -> String {
    format!("{}/{}", resource(namespace, name), action.path())
}

/// Returns the path of the dependency graph of `namespace`.
pub(crate) fn graph(namespace: &str) -> String {
    format!("/ns/{}/graph", segment(namespace))
}

/// Returns the path of the list of the resources in `namespace`.
pub(crate) fn list(namespace: &str) -> String {
    format!("/?ns={}", segment(namespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_percent_encoded() {
        assert_eq!(resource("a-b", "c.d"), "/ns/a-b/tf/c.d");
        assert_eq!(resource("a/b", "?\"é"), "/ns/a%2Fb/tf/%3F%22%C3%A9");
    }
}
