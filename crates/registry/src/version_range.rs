//! Ranges of versions, which select a tag. The syntax is that of Flux: comparisons separated by spaces or commas, `^`, `~`, `x` and `*`.
//! Performs no I/O.

use std::collections::BTreeSet;

use semver::{Version, VersionReq};

use crate::error::Error;

/// Maximum size of a range, in bytes.
const MAX_BYTES: usize = 128;

/// A range of versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionRange(VersionReq);

impl VersionRange {
    /// Parses a range, for example `>=1.2.0 <2.0.0`, `1.x` or `~1.4`. A version without an operator selects only this version, and `1.2`
    /// selects `1.2.x`.
    ///
    /// # Errors
    /// Returns [`Error::InvalidRange`] with the reason.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let invalid = |why: String| Error::InvalidRange {
            range: text
                .chars()
                .take(MAX_BYTES)
                .collect::<String>()
                .escape_debug()
                .to_string(),
            why,
        };
        if text.len() > MAX_BYTES {
            return Err(invalid(format!("it is longer than {MAX_BYTES} bytes")));
        }
        let mut comparisons: Vec<String> = Vec::new();
        let mut operator = String::new();
        for word in text.split([' ', ',']).filter(|word| !word.is_empty()) {
            if word.chars().all(|c| "<>=^~".contains(c)) {
                operator.push_str(word);
                continue;
            }
            comparisons.push(comparison(&std::mem::take(&mut operator), word));
        }
        if comparisons.is_empty() || !operator.is_empty() {
            return Err(invalid("expected a version".to_owned()));
        }
        VersionReq::parse(&comparisons.join(", "))
            .map(Self)
            .map_err(|error| invalid(error.to_string()))
    }

    /// Returns the tag of the highest version in the range. A tag may have the prefix `v`.
    pub fn newest<'a>(&self, tags: &'a BTreeSet<String>) -> Option<&'a str> {
        tags.iter()
            .filter_map(|tag| Some((version(tag)?, tag)))
            .filter(|(version, _)| self.0.matches(version))
            .max()
            .map(|(_, tag)| tag.as_str())
    }
}

/// Returns the comparison `operator` with `version` in the syntax of semver. There, a version without an operator stands for compatible
/// versions.
fn comparison(operator: &str, version: &str) -> String {
    let start = version.find(|c: char| !"<>=^~".contains(c)).unwrap_or(0);
    let (own, version) = version.split_at(start);
    let version = version.strip_prefix('v').unwrap_or(version);
    let operator = format!("{operator}{own}");
    let is_wildcard = version.contains(['x', 'X', '*']) && !version.contains('-');
    if operator.is_empty() && !is_wildcard {
        format!("={version}")
    } else {
        format!("{operator}{version}")
    }
}

fn version(tag: &str) -> Option<Version> {
    Version::parse(tag.strip_prefix('v').unwrap_or(tag)).ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("1.2.3", Some("1.2.3"))]
    #[case("1.2", Some("1.2.9"))]
    #[case("1", Some("v1.10.0"))]
    #[case("1.x", Some("v1.10.0"))]
    #[case("*", Some("2.0.0"))]
    #[case(">=1.0.0 <2.0.0", Some("v1.10.0"))]
    #[case(">= 1.0.0, < 1.3", Some("1.2.9"))]
    #[case("~1.2", Some("1.2.9"))]
    #[case("^1.2.0", Some("v1.10.0"))]
    #[case(">=2.1.0-0", Some("2.1.0-rc.1"))]
    #[case(">=3", None)]
    fn newest_version_in_the_range_is_selected(#[case] range: &str, #[case] tag: Option<&str>) {
        let tags = [
            "latest",
            "1",
            "1.2",
            "1.2.3",
            "1.2.9",
            "v1.10.0",
            "2.0.0",
            "2.1.0-rc.1",
        ];
        let tags = tags.map(str::to_owned).into();
        assert_eq!(VersionRange::parse(range).unwrap().newest(&tags), tag);
    }

    #[rstest]
    #[case("")]
    #[case(" ")]
    #[case(">=")]
    #[case("1.2.3 ||")]
    #[case("latest")]
    #[case(&"1".repeat(200))]
    fn invalid_range_is_refused(#[case] range: &str) {
        let error = VersionRange::parse(range).unwrap_err();
        assert_eq!(error.reason().as_str(), "InvalidSource");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_range_or_refused(text in "\\PC{0,40}") {
            if let Ok(range) = VersionRange::parse(&text) {
                range.newest(&["1.0.0".to_owned()].into());
            }
        }
    }
}
