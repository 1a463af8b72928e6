//! Syntax of names of objects and of labels.

/// Maximum length of a DNS label, of the name in the key of a label, and of the value of a label.
const MAX_LABEL: usize = 63;

/// Whether `name` is a DNS label, as required for the name of a namespace
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#names>).
pub(crate) fn is_label(name: &str) -> bool {
    name.len() <= MAX_LABEL && is_part(name)
}

/// Whether `name` is a DNS subdomain, as required for the name of a resource.
pub fn is_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_part)
}

/// Whether `name` contains only lowercase letters, digits and `-`, and starts and ends with a letter or digit.
fn is_part(name: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    ends.into_iter()
        .all(|byte| byte.copied().is_some_and(is_alphanumeric))
        && bytes
            .iter()
            .all(|byte| is_alphanumeric(*byte) || *byte == b'-')
}

/// Whether `key` is the key of a label, with or without a prefix
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set>).
pub(crate) fn is_label_key(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    is_label_name(name) && prefix.is_none_or(is_subdomain)
}

/// Whether `value` is the value of a label.
pub(crate) fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_label_name(value)
}

fn is_label_name(name: &str) -> bool {
    let is_end = |character: char| character.is_ascii_alphanumeric();
    let mut characters = name.chars();
    name.len() <= MAX_LABEL
        && name.starts_with(is_end)
        && name.ends_with(is_end)
        && characters.all(|character| is_end(character) || "-_.".contains(character))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("role", true)]
    #[case("example.com/Role_1.a-b", true)]
    #[case("", false)]
    #[case("/role", false)]
    #[case("example.com/", false)]
    #[case("a/b/c", false)]
    #[case("Example.com/role", false)]
    #[case("-role", false)]
    #[case("z\u{fc}rich", false)]
    fn label_keys_are_recognised(#[case] key: &str, #[case] expected: bool) {
        assert_eq!(is_label_key(key), expected);
    }

    #[test]
    fn label_values_are_empty_or_names() {
        let longest = "a".repeat(MAX_LABEL);
        assert!(["", "Web-1.2_3", &longest].into_iter().all(is_label_value));
        let too_long = format!("{longest}a");
        assert!(
            !["a b", "-a", "a.", "a/b", &too_long]
                .into_iter()
                .any(is_label_value)
        );
    }
}
