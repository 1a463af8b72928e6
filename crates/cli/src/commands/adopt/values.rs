//! Validation of values that objects of other operators contain. A value that is not valid is not copied into a `Terraform` resource.

use alustan_api::Terraform;
use kube::CustomResourceExt as _;

/// Maximum length of a URL, in bytes.
const MAX_URL: usize = 2_000;
/// Maximum length of a path or of a git reference, in bytes.
const MAX_PATH: usize = 1_024;
/// Maximum length of an object name or of a key, in bytes.
const MAX_NAME: usize = 253;
/// Maximum length of the name of a `Terraform` resource, in bytes (CEL rule of the CRD).
const MAX_RESOURCE_NAME: usize = 50;
/// Maximum length of `spec.workspace`, in bytes (CRD).
const MAX_WORKSPACE: usize = 90;
/// Bounds of a duration in a spec, in seconds (CEL rule of the CRD).
const DURATIONS: std::ops::RangeInclusive<f64> = 1.0..=8_760.0 * 3_600.0;

/// Returns the name of the CRD of `Terraform` resources. kubectl resolves neither `tf` nor `terraforms` to this kind if the CRD of
/// tofu-controller is installed.
pub(crate) fn resource_type() -> &'static str {
    Terraform::crd_name()
}

/// Whether `text` is an RFC 1123 subdomain: a valid name of an object.
pub(crate) fn is_object_name(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        let has_valid_ends = [bytes.first(), bytes.last()]
            .into_iter()
            .all(|end| end.is_some_and(|byte| is_inner(*byte)));
        has_valid_ends && bytes.iter().all(|byte| is_inner(*byte) || *byte == b'-')
    };
    text.len() <= MAX_NAME && text.split('.').all(is_label)
}

/// Whether `text` is a valid name of a `Terraform` resource.
pub(crate) fn is_resource_name(text: &str) -> bool {
    text.len() <= MAX_RESOURCE_NAME && is_object_name(text)
}

/// Whether `text` is a valid name of a namespace: an RFC 1123 label.
pub(crate) fn is_namespace(text: &str) -> bool {
    text.len() <= 63 && !text.contains('.') && is_object_name(text)
}

/// Whether `text` is a valid key of a Secret or `ConfigMap`.
pub(crate) fn is_key(text: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(is_valid)
}

/// Whether `text` is an identifier of the engine: a valid name of a variable or output.
pub(crate) fn is_identifier(text: &str) -> bool {
    let starts = |c: char| c.is_alphabetic() || c == '_';
    text.len() <= MAX_NAME
        && text.starts_with(starts)
        && text
            .chars()
            .all(|c| c.is_alphanumeric() || "_-".contains(c))
}

/// Whether `text` can be the name of a branch or tag.
pub(crate) fn is_reference(text: &str) -> bool {
    let is_refused = |c: char| c.is_control() || c.is_whitespace() || "~^:?*[\\".contains(c);
    (1..=MAX_PATH).contains(&text.len())
        && !text.starts_with(['-', '/'])
        && !text.contains("..")
        && !text.contains(is_refused)
}

/// Whether `text` is a name that `spec.workspace` accepts.
pub(crate) fn is_workspace(text: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    (1..=MAX_WORKSPACE).contains(&text.len())
        && text.chars().all(is_valid)
        && !text.starts_with(['.', '-'])
}

/// Whether `text` is a full commit id.
pub(crate) fn is_commit(text: &str) -> bool {
    [40, 64].contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether `text` is a version such as `1.12.6` or a version prefix such as `1.12`.
pub(crate) fn is_version(text: &str) -> bool {
    let is_number = |part: &str| {
        (1..=9).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    text.split('.').count() <= 3 && text.split('.').all(is_number)
}

/// Whether `text` can be an image repository without a tag. The operator checks the rest.
pub(crate) fn is_image_name(text: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/:".contains(&byte);
    (1..=MAX_URL).contains(&text.len()) && text.bytes().all(is_valid)
}

/// Whether `text` is a duration in Go syntax within the bounds of the CRD, for example `10m0s`.
pub(crate) fn is_duration(text: &str) -> bool {
    text.len() <= 64 && seconds(text).is_some_and(|seconds| DURATIONS.contains(&seconds))
}

/// Returns the length of a duration in Go syntax, in seconds. `None` for a unit below milliseconds: the CRD has no such unit.
fn seconds(text: &str) -> Option<f64> {
    let mut rest = text;
    let mut sum = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at_checked(end)?;
        let unit_end = after.find(|c: char| c.is_ascii_digit());
        let (unit, next) = after.split_at_checked(unit_end.unwrap_or(after.len()))?;
        let factor = match unit {
            "h" => 3_600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            _ => return None,
        };
        sum += number.parse::<f64>().ok()? * factor;
        rest = next;
    }
    Some(sum)
}

/// Returns `text` as a path relative to the root of a repository, without `./`. An empty result is the root. `None` if the path is not
/// relative or leaves the repository.
pub(crate) fn relative_path(text: &str) -> Option<String> {
    let is_valid = text.len() <= MAX_PATH
        && !text.starts_with('/')
        && !text.contains(|c: char| c.is_control() || c == '\\');
    let parts: Vec<&str> = text
        .split('/')
        .filter(|part| !["", "."].contains(part))
        .collect();
    (is_valid && !parts.contains(&"..")).then(|| parts.join("/"))
}

/// Reasons why a URL of a repository is refused. They do not contain the URL, which may contain a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidUrl {
    /// The URL has a password.
    #[error("contains a password: put it into a Secret for spec.gitRepo.credentialsSecret")]
    Password,
    /// The URL is not an https, http or ssh URL.
    #[error("must be an https://, ssh:// or git@host: URL of at most 2000 characters")]
    Form,
}

/// Returns `path` relative to `folder`. Both are results of [`relative_path`].
pub(crate) fn path_from(folder: &str, path: &str) -> String {
    let folder: Vec<&str> = folder.split_terminator('/').collect();
    let path: Vec<&str> = path.split('/').collect();
    let shared = std::iter::zip(&folder, &path)
        .take_while(|(a, b)| a == b)
        .count();
    let up = folder.iter().skip(shared).map(|_| "..");
    let down = path.iter().skip(shared).copied();
    up.chain(down).collect::<Vec<_>>().join("/")
}

/// Returns `url` in the form of `spec.gitRepo.url`. Removes the user name of an https URL.
pub(crate) fn git_url(url: &str) -> Result<String, InvalidUrl> {
    let is_plain = |c: char| !c.is_control() && !c.is_whitespace();
    if url.len() > MAX_URL || !url.chars().all(is_plain) {
        return Err(InvalidUrl::Form);
    }
    let Some((scheme, rest)) = url.split_once("://") else {
        return scp_url(url);
    };
    let (authority, path) = rest.split_once('/').ok_or(InvalidUrl::Form)?;
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    if user.is_some_and(|user| user.contains(':')) {
        return Err(InvalidUrl::Password);
    }
    let is_complete = !host.is_empty() && !path.is_empty() && !path.contains(['?', '#']);
    match (scheme, is_complete) {
        ("https" | "http", true) => Ok(format!("{scheme}://{host}/{path}")),
        ("ssh", true) => Ok(url.to_owned()),
        _ => Err(InvalidUrl::Form),
    }
}

/// Accepts `user@host:path`.
fn scp_url(url: &str) -> Result<String, InvalidUrl> {
    let (user, rest) = url.split_once('@').ok_or(InvalidUrl::Form)?;
    let (host, path) = rest.split_once(':').ok_or(InvalidUrl::Form)?;
    let parts = [user, host, path];
    let is_complete = parts.iter().all(|part| !part.is_empty()) && !user.contains([':', '/']);
    is_complete.then(|| url.to_owned()).ok_or(InvalidUrl::Form)
}

/// Whether requests to `url`, a result of [`git_url`], use ssh.
pub(crate) fn is_ssh(url: &str) -> bool {
    !url.starts_with("https://") && !url.starts_with("http://")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("web", true)]
    #[case("web.team-1", true)]
    #[case("", false)]
    #[case("Web", false)]
    #[case("-web", false)]
    #[case("web-", false)]
    #[case("a..b", false)]
    #[case("web\n", false)]
    #[case("../web", false)]
    fn object_names_are_rfc_1123_subdomains(#[case] text: &str, #[case] valid: bool) {
        assert_eq!(is_object_name(text), valid);
    }

    #[test]
    fn names_are_bounded() {
        assert!(is_object_name(&"a".repeat(253)));
        assert!(!is_object_name(&"a".repeat(254)));
        assert!(!is_resource_name(&"a".repeat(51)));
        assert!(!is_namespace(&"a".repeat(64)));
        assert!(!is_namespace("a.b"));
        assert!(!is_key(""));
        assert!(!is_key("a/b"));
        assert!(!is_identifier("1a"));
        assert!(!is_identifier("a b"));
    }

    #[rstest]
    #[case("10m0s", true)]
    #[case("1h30m", true)]
    #[case("1.5h", true)]
    #[case("8760h", true)]
    #[case("8761h", false)]
    #[case("500ms", false)]
    #[case("0s", false)]
    #[case("10", false)]
    #[case("", false)]
    #[case("-5m", false)]
    #[case("5d", false)]
    #[case("9".repeat(60) + "h", false)]
    fn durations_are_within_the_bounds_of_the_crd(#[case] text: String, #[case] valid: bool) {
        assert_eq!(is_duration(&text), valid);
    }

    #[rstest]
    #[case("", Some(""))]
    #[case("./", Some(""))]
    #[case("./a//b/", Some("a/b"))]
    #[case("a/../b", None)]
    #[case("/a", None)]
    #[case("a\nb", None)]
    fn paths_stay_in_the_repository(#[case] text: &str, #[case] wanted: Option<&str>) {
        assert_eq!(relative_path(text).as_deref(), wanted);
    }

    #[rstest]
    #[case("https://git.test/a/b", Ok("https://git.test/a/b"))]
    #[case("https://me@git.test/a/b", Ok("https://git.test/a/b"))]
    #[case("ssh://git@git.test:22/a.git", Ok("ssh://git@git.test:22/a.git"))]
    #[case("git@git.test:a/b.git", Ok("git@git.test:a/b.git"))]
    #[case("https://me:pw@git.test/a", Err(InvalidUrl::Password))]
    #[case("ssh://me:pw@git.test/a", Err(InvalidUrl::Password))]
    #[case("https://git.test", Err(InvalidUrl::Form))]
    #[case("https://git.test/a?ref=b", Err(InvalidUrl::Form))]
    #[case("file:///etc", Err(InvalidUrl::Form))]
    #[case("ext::sh -c", Err(InvalidUrl::Form))]
    #[case("--upload-pack=x", Err(InvalidUrl::Form))]
    fn urls_are_those_of_git_servers(#[case] url: &str, #[case] wanted: Result<&str, InvalidUrl>) {
        assert_eq!(git_url(url), wanted.map(str::to_owned));
    }

    #[rstest]
    #[case("1.12", true)]
    #[case("1.12.6", true)]
    #[case("~> 1.3", false)]
    #[case("latest", false)]
    #[case("1.2.3.4", false)]
    fn versions_are_numbers(#[case] text: &str, #[case] valid: bool) {
        assert_eq!(is_version(text), valid);
    }
}
