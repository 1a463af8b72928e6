//! Engines with their version, comparison of versions, and changes of the engine that need `spec.engine.allowSwitch`.

use std::cmp::Ordering;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::engine_name::EngineName;

/// Engine and its version.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Engine {
    /// Name of the engine.
    pub name: EngineName,
    /// Version of the engine. Example: `1.11.4`.
    pub version: String,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

/// Change of the engine after which the state may be unreadable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// Change to another engine.
    Engine,
    /// Change to an older version of the same engine.
    Downgrade,
}

impl Engine {
    /// Returns the kind of the change from this engine to `next`. `None` if `next` is the same engine in the same or a newer version. Also
    /// `None` if `next` is the same engine and one of the two versions is not a full version ([`is_version`]): such a version cannot be
    /// compared.
    pub fn switch_to(&self, next: &Self) -> Option<Switch> {
        if self.name != next.name {
            return Some(Switch::Engine);
        }
        let older = is_version(&self.version)
            && is_version(&next.version)
            && order(&next.version, &self.version) == Ordering::Less;
        older.then_some(Switch::Downgrade)
    }

    /// Returns why a change from this engine to `next` is refused. `None` if [`Self::switch_to`] returns `None`.
    pub fn refusal(&self, next: &Self) -> Option<String> {
        let what = match self.switch_to(next)? {
            Switch::Engine => "the new engine may be unable to read the state",
            Switch::Downgrade => "an older version may be unable to read the state",
        };
        Some(format!(
            "the last apply used {self}, and the next run would use {next}: {what}"
        ))
    }
}

/// Whether `text` is a full version: three numbers of at most 9 digits, and optionally `-` and a pre-release of at most 64 letters, digits,
/// `.` and `-`.
pub fn is_version(text: &str) -> bool {
    let (numbers, before) = split(text);
    let parts: Vec<_> = numbers.split('.').collect();
    let is_pre_release = |text: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
        (1..=64).contains(&text.len()) && text.bytes().all(plain)
    };
    parts.len() == 3 && parts.iter().all(|it| is_number(it)) && before.is_none_or(is_pre_release)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() <= 9 && text.bytes().all(|it| it.is_ascii_digit())
}

fn split(version: &str) -> (&str, Option<&str>) {
    version
        .split_once('-')
        .map_or((version, None), |(numbers, before)| (numbers, Some(before)))
}

/// Compares two versions by precedence. A pre-release (`1.12.0-rc1`) is older than its release.
pub fn order(one: &str, other: &str) -> Ordering {
    let key = |version: &str| {
        let (numbers, _) = split(version);
        numbers
            .split('.')
            .map(|it| it.parse().unwrap_or_default())
            .collect::<Vec<u32>>()
    };
    let before = |version: &str| split(version).1.map(parts);
    key(one)
        .cmp(&key(other))
        .then_with(|| match (before(one), before(other)) {
            (None, None) => Ordering::Equal,
            (None, Some(_)) => Ordering::Greater,
            (Some(_), None) => Ordering::Less,
            (Some(one), Some(other)) => one.cmp(&other),
        })
}

/// Splits a pre-release at its dots. Separates the trailing number of each part, so that numbers compare as numbers: `rc2` is older than
/// `rc10`.
fn parts(before: &str) -> Vec<(String, u32)> {
    let part = |text: &str| {
        let word = text.trim_end_matches(|it: char| it.is_ascii_digit());
        let number = text.strip_prefix(word).unwrap_or_default();
        (word.to_owned(), number.parse().unwrap_or_default())
    };
    before.split('.').map(part).collect()
}

/// Whether `version` satisfies `wanted`: it equals `wanted`, or is a release that begins with the numbers of `wanted`. `1.12` matches
/// `1.12.6`, and no pre-release.
pub fn is_wanted(wanted: &str, version: &str) -> bool {
    let within = || {
        version
            .strip_prefix(wanted)
            .is_some_and(|rest| rest.starts_with('.') && !version.contains('-'))
    };
    version == wanted || within()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(name: EngineName, version: &str) -> Engine {
        Engine {
            name,
            version: version.to_owned(),
        }
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let sorted = [
            "1.2.0",
            "1.9.8",
            "1.12.0-alpha2",
            "1.12.0-rc2",
            "1.12.0-rc10",
            "1.12.0",
            "1.12.1",
        ];
        for (index, one) in sorted.iter().enumerate() {
            for (other_index, other) in sorted.iter().enumerate() {
                assert_eq!(order(one, other), index.cmp(&other_index), "{one} {other}");
            }
        }
    }

    #[test]
    fn partial_version_matches_every_release_with_its_prefix() {
        let wanted = [
            ("1.12", "1.12.6", true),
            ("1", "1.12.6", true),
            ("1.12.6", "1.12.6", true),
            ("1.12.0-rc1", "1.12.0-rc1", true),
            ("1.1", "1.12.6", false),
            ("1.12", "1.12.0-rc1", false),
            ("1.12.6", "1.12.60", false),
        ];
        for (wanted, version, answer) in wanted {
            assert_eq!(is_wanted(wanted, version), answer, "{wanted} {version}");
        }
    }

    #[test]
    fn only_complete_versions_are_recognised() {
        for (text, answer) in [
            ("1.11.4", true),
            ("1.12.0-rc1", true),
            ("1.11", false),
            ("v1.11.4", false),
            ("1.11.x", false),
            ("1.11.4-", false),
            ("1.11.4-'; reboot; '", false),
            ("", false),
        ] {
            assert_eq!(is_version(text), answer, "{text}");
        }
    }

    #[test]
    fn other_engine_or_older_version_is_a_switch() {
        let (terraform, tofu) = (EngineName::Terraform, EngineName::Opentofu);
        let at = engine(terraform, "1.11.4");
        for (next, wanted) in [
            (engine(terraform, "1.11.4"), None),
            (engine(terraform, "1.12.0"), None),
            (engine(terraform, "1.11.3"), Some(Switch::Downgrade)),
            (engine(terraform, "1.9.8"), Some(Switch::Downgrade)),
            (engine(tofu, "1.12.6"), Some(Switch::Engine)),
            (engine(terraform, "of our own"), None),
        ] {
            assert_eq!(at.switch_to(&next), wanted, "{next}");
            assert_eq!(at.refusal(&next).is_some(), wanted.is_some(), "{next}");
        }
    }
}
