//! Header and subject of a commit.

/// Maximum length of a subject, in bytes.
const SUBJECT: usize = 200;
/// Maximum length of the name of an author, in bytes.
const AUTHOR: usize = 100;

/// Committer date, author and subject of a commit. Anybody who can push can choose them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitInfo {
    /// Committer date, in seconds since 1970. 0 if the date is missing or invalid, and for a source other than a git repository.
    pub committed_at: i64,
    /// Name of the author, without control characters, at most 100 bytes.
    pub author: String,
    /// First line of the message, without control characters, at most 200 bytes.
    pub subject: String,
}

impl CommitInfo {
    /// Parses a commit object: a header, an empty line, and the message. The header contains the lines `author NAME <ADDRESS> SECONDS ZONE` and
    /// `committer NAME <ADDRESS> SECONDS ZONE`. See <https://git-scm.com/book/en/v2/Git-Internals-Git-Objects#_git_commit_objects>.
    pub(crate) fn read(commit: &[u8]) -> Self {
        let mut lines = commit.split(|byte| *byte == b'\n');
        let header: Vec<_> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
        let field = |name: &[u8]| header.iter().find_map(|line| line.strip_prefix(name));
        let subject = lines.find(|line| !line.trim_ascii().is_empty());
        Self {
            committed_at: field(b"committer ").and_then(date).unwrap_or_default(),
            author: field(b"author ").map(author).unwrap_or_default(),
            subject: subject.map(|line| text(line, SUBJECT)).unwrap_or_default(),
        }
    }
}

/// Returns the date in `NAME <ADDRESS> SECONDS ZONE`, in seconds since 1970.
fn date(person: &[u8]) -> Option<i64> {
    let seconds = person.rsplit(|byte| *byte == b' ').nth(1)?;
    std::str::from_utf8(seconds).ok()?.parse().ok()
}

/// Returns the name in `NAME <ADDRESS> SECONDS ZONE`.
fn author(person: &[u8]) -> String {
    let name = person.split(|byte| *byte == b'<').next();
    text(name.unwrap_or_default(), AUTHOR)
}

/// Returns the beginning of `line`, at most `max` bytes, without control characters.
fn text(line: &[u8], max: usize) -> String {
    let text = String::from_utf8_lossy(line);
    let text: String = text.chars().filter(|char| !char.is_control()).collect();
    let end = text.floor_char_boundary(max);
    text.get(..end).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::usual(
        "tree a\nauthor A <a@b> 1 +0000\ncommitter B C <b@c> 1700000000 +0100\n\ntext",
        1_700_000_000
    )]
    #[case::before_1970("committer A <a@b> -5 +0000\n\n", -5)]
    #[case::in_the_text("tree a\n\ncommitter A <a@b> 1 +0000\n", 0)]
    #[case::without_a_zone("committer A <a@b> 1700000000\n\n", 0)]
    #[case::too_large("committer A <a@b> 99999999999999999999 +0000\n\n", 0)]
    #[case::nothing("", 0)]
    fn committer_date_is_read_from_the_header(#[case] commit: &str, #[case] expected: i64) {
        assert_eq!(CommitInfo::read(commit.as_bytes()).committed_at, expected);
    }

    #[rstest]
    #[case::usual("author A B <a@b> 1 +0000\n\nAdd c\n\nbecause", "A B", "Add c")]
    #[case::control_characters(
        "author A\x1b[1m <a> 1 +0000\n\nsafe\r\x1b]8;;x\x07\n",
        "A[1m",
        "safe]8;;x"
    )]
    #[case::empty_lines("author A <a> 1 +0000\n\n\n \nlate\n", "A", "late")]
    #[case::nothing("", "", "")]
    fn author_and_subject_are_read(
        #[case] commit: &str,
        #[case] author: &str,
        #[case] subject: &str,
    ) {
        let info = CommitInfo::read(commit.as_bytes());
        assert_eq!((&*info.author, &*info.subject), (author, subject));
    }

    #[test]
    fn author_and_subject_have_a_maximum_length() {
        let long = "ü".repeat(5_000);
        let info = CommitInfo::read(format!("author {long} <a> 1 +0\n\n{long}").as_bytes());
        assert_eq!(info.author, "ü".repeat(50));
        assert_eq!(info.subject, "ü".repeat(100));
        let invalid = [b"\n".as_slice(), &[0xff; 5_000]].concat();
        assert!(CommitInfo::read(&invalid).subject.len() <= SUBJECT);
    }
}
