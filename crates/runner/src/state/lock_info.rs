//! Lock of a state, parsed from the output of an engine that failed because of the lock.

use std::ffi::OsString;

use alustan_api::run::StateLock;
use k8s_openapi::jiff::Timestamp;

/// Names of the fields of a lock in the output of the engine.
const PARTS: [&str; 4] = ["ID", "Operation", "Who", "Created"];

/// Number of lines after `Lock Info:` that may contain fields of the lock.
const LINES: usize = 10;

/// Parses the lock in `output`, an output of the engine. Accepts a prefix on each line, because wrappers such as Terragrunt add one.
pub fn read(output: &str) -> Option<StateLock> {
    let mut lines = output
        .lines()
        .skip_while(|line| !line.contains("Lock Info:"));
    lines.next()?;
    let lines: Vec<&str> = lines.take(LINES).collect();
    let [id, operation, who, created] =
        PARTS.map(|name| lines.iter().find_map(|line| part(line, name)));
    Some(StateLock {
        id: id?,
        operation: operation.unwrap_or_default(),
        who: who.unwrap_or_default(),
        at: created
            .and_then(|at| time(&at))
            .unwrap_or_else(Timestamp::now),
    })
}

/// Returns the value of `name` in a line such as `│   Who:       user@host`.
fn part(line: &str, name: &str) -> Option<String> {
    let (before, value) = line.split_once(&format!("{name}:"))?;
    let whole = before.is_empty() || before.ends_with([' ', '\t', '│']);
    let value = value.trim();
    (whole && !value.is_empty()).then(|| value.to_owned())
}

/// Parses a time in the default format of Go: `2026-11-21 18:41:09.705582698 +0000 UTC`.
fn time(text: &str) -> Option<Timestamp> {
    let words: Vec<&str> = text.split_whitespace().take(3).collect();
    Timestamp::strptime("%Y-%m-%d %H:%M:%S%.f %z", words.join(" ")).ok()
}

/// Returns the engine arguments that release the lock `id`; `None` if `id` contains unexpected characters, or if the engine could interpret
/// `id` as an option.
pub fn release(id: &str) -> Option<Vec<OsString>> {
    is_id(id).then(|| vec!["force-unlock".into(), "-force".into(), id.into()])
}

fn is_id(id: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/=+".contains(c);
    !id.is_empty() && !id.starts_with('-') && id.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::tidy;
    use rstest::rstest;

    const FRAMED: &str = "
╷
│ Error: Error acquiring the state lock
│ 
│ Error message: operation error S3: PutObject, https response error StatusCode: 412
│ Lock Info:
│   ID:        3d93d31b-0f0c-0d2b-bd8c-e7e2d8a5a2b1
│   Path:      store/team/web.tfstate
│   Operation: OperationTypeApply
│   Who:       alustan@web-apply-6-abcde
│   Version:   1.11.4
│   Created:   2026-11-21 18:41:09.705582698 +0000 UTC
│   Info:      
│ 
│ Terraform acquires a state lock to protect the state from being written
╵
";

    const WRAPPED: &str = "
10:29:23.345 STDERR [unit] tofu: Error: Error acquiring the state lock
10:29:23.345 STDERR [unit] tofu: Lock Info:
10:29:23.345 STDERR [unit] tofu:   ID:        3d93d31b-0f0c-0d2b-bd8c-e7e2d8a5a2b1
10:29:23.345 STDERR [unit] tofu:   Path:      store/team/web.tfstate
10:29:23.345 STDERR [unit] tofu:   Operation: OperationTypeApply
10:29:23.345 STDERR [unit] tofu:   Who:       alustan@web-apply-6-abcde
10:29:23.345 STDERR [unit] tofu:   Version:   1.11.4
10:29:23.345 STDERR [unit] tofu:   Created:   2026-11-21 18:41:09.705582698 +0000 UTC
";

    #[rstest]
    #[case::framed(FRAMED.to_owned())]
    #[case::unframed(tidy(FRAMED))]
    #[case::prefixed_by_wrapper(WRAPPED.to_owned())]
    fn lock_info_is_parsed_from_engine_output(#[case] output: String) {
        let lock = read(&output).unwrap();
        assert_eq!(lock.id, "3d93d31b-0f0c-0d2b-bd8c-e7e2d8a5a2b1");
        assert_eq!(lock.operation, "OperationTypeApply");
        assert_eq!(lock.who, "alustan@web-apply-6-abcde");
        assert_eq!(lock.at.to_string(), "2026-11-21T18:41:09.705582698Z");
        assert_eq!(lock.host(), "web-apply-6-abcde");
    }

    #[rstest]
    #[case("Error: Error acquiring the state lock\n\nError message: no details")]
    #[case("Lock Info:\n  Who: me@here\n")]
    #[case("Lock Info:\n  ID:        \n  Who:       me@here\n")]
    #[case("")]
    fn lock_info_without_an_id_is_ignored(#[case] output: &str) {
        assert_eq!(read(output), None);
    }

    #[rstest]
    #[case("3d93d31b-0f0c-0d2b-bd8c-e7e2d8a5a2b1", true)]
    #[case("1700000000000000", true)]
    #[case("-force", false)]
    #[case("a b", false)]
    #[case("", false)]
    fn invalid_lock_id_is_not_passed_to_force_unlock(#[case] id: &str, #[case] good: bool) {
        let arguments = ["force-unlock", "-force", id].map(OsString::from);
        let expected = good.then(|| arguments.to_vec());
        assert_eq!(release(id), expected);
    }
}
