//! `CHANGELOG.md`, in the format of <https://keepachangelog.com/en/1.1.0/>.

use anyhow::{Context, Result, ensure};

const UNRELEASED: &str = "[Unreleased]";

/// Section of a version: the heading without `## `, and the text below it.
struct Section<'a> {
    heading: &'a str,
    text: &'a str,
}

fn sections(changelog: &str) -> impl Iterator<Item = Section<'_>> {
    changelog.split("\n## ").skip(1).map(|section| {
        let (heading, text) = section.split_once('\n').unwrap_or((section, ""));
        let text = text.trim();
        Section { heading, text }
    })
}

fn section<'a>(changelog: &'a str, heading: &str) -> Option<Section<'a>> {
    sections(changelog).find(|section| section.heading.starts_with(heading))
}

/// Returns the notes of the released `version`. The section of this version must have a date, and the unreleased
/// section must be empty.
pub(super) fn of_release(changelog: &str, version: &str) -> Result<String> {
    let unreleased = section(changelog, UNRELEASED)
        .with_context(|| format!("CHANGELOG.md has no section {UNRELEASED}"))?;
    ensure!(
        unreleased.text.is_empty(),
        "CHANGELOG.md: move the entries of {UNRELEASED} into a section [{version}]"
    );
    let released = section(changelog, &format!("[{version}]"))
        .with_context(|| format!("CHANGELOG.md has no section [{version}]"))?;
    let date = released.heading.rsplit(" - ").next().unwrap_or_default();
    ensure!(
        is_date(date),
        "CHANGELOG.md: heading {:?} must end with the release date, for example ## [{version}] - 2026-01-31",
        released.heading
    );
    ensure!(
        !released.text.is_empty(),
        "CHANGELOG.md: section [{version}] is empty"
    );
    Ok(format!("{}\n", released.text))
}

/// Returns the unreleased section. If it is empty, returns the notes of the released `version`.
pub(super) fn of_next(changelog: &str, version: &str) -> Result<String> {
    match section(changelog, UNRELEASED) {
        Some(unreleased) if !unreleased.text.is_empty() => Ok(format!("{}\n", unreleased.text)),
        _ => of_release(changelog, version),
    }
}

/// Returns true if `text` has the form of a date, for example 2026-01-31.
fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    parts.iter().map(|part| part.len()).eq([4, 2, 2])
        && parts
            .iter()
            .all(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELEASED: &str = "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-02-03\n\n### Added\n\n- A.\n\n## [1.1.0] - 2026-01-01\n\n- B.\n";

    #[test]
    fn release_requires_a_dated_section_and_no_unreleased_entries() {
        assert_eq!(
            of_release(RELEASED, "1.2.0").unwrap(),
            "### Added\n\n- A.\n"
        );
        for (changelog, message) in [
            (RELEASED.replace("[1.2.0]", "[1.3.0]"), "no section [1.2.0]"),
            (RELEASED.replace(" - 2026-02-03", ""), "date"),
            (RELEASED.replace("2026-02-03", "soon"), "date"),
            (RELEASED.replace("### Added\n\n- A.\n", ""), "is empty"),
            (
                RELEASED.replace("[Unreleased]\n", "[Unreleased]\n\n- C.\n"),
                "move the entries",
            ),
            (RELEASED.replace("## [Unreleased]\n", ""), "[Unreleased]"),
        ] {
            let refused = of_release(&changelog, "1.2.0").unwrap_err().to_string();
            assert!(refused.contains(message), "{refused}");
        }
    }

    #[test]
    fn notes_before_a_release_are_the_unreleased_section() {
        let changelog = RELEASED.replace("[Unreleased]\n", "[Unreleased]\n\n- C.\n");
        assert_eq!(of_next(&changelog, "1.3.0").unwrap(), "- C.\n");
        assert_eq!(of_next(RELEASED, "1.1.0").unwrap(), "- B.\n");
        assert!(of_next(RELEASED, "1.3.0").is_err());
    }
}
