use super::*;
use proptest::prelude::*;
use rstest::rstest;

#[rstest]
// On GitHub and Bitbucket, the path after `owner/name` is a folder in the repository.
#[case(
    "git@github.com:example/terraform-repo/terraform",
    "git@github.com:example/terraform-repo",
    "terraform"
)]
#[case(
    "https://github.com/example/terraform-repo/terraform",
    "https://github.com/example/terraform-repo",
    "terraform"
)]
#[case("https://bitbucket.org/o/r/a/b", "https://bitbucket.org/o/r", "a/b")]
#[case("ssh://git@github.com/o/r/a", "ssh://git@github.com/o/r", "a")]
#[case("https://github.com/o/r.git/a", "https://github.com/o/r.git", "a")]
#[case("https://github.com/o/r.git", "https://github.com/o/r.git", "")]
#[case("https://github.com/o/r/", "https://github.com/o/r", "")]
#[case("git@github.com:/o/r/a", "git@github.com:/o/r", "a")]
// On other hosts, the whole path is the path of the repository.
#[case(
    "https://gitlab.com/group/sub/name",
    "https://gitlab.com/group/sub/name",
    ""
)]
#[case(
    "git@gitlab.com:group/sub/name.git",
    "git@gitlab.com:group/sub/name.git",
    ""
)]
// `//` before the folder, as in go-getter URLs.
#[case(
    "https://gitlab.com/g/n.git//modules/x",
    "https://gitlab.com/g/n.git",
    "modules/x"
)]
#[case("git@host.example:n.git//x", "git@host.example:n.git", "x")]
#[case("https://github.com/o/r//a/b/", "https://github.com/o/r", "a/b")]
#[case("https://github.com/o/r/a//b", "https://github.com/o/r", "a/b")]
#[case("https://h/r//", "https://h/r", "")]
// URLs with ports, user names, upper-case letters and IP addresses.
#[case(
    "ssh://git@Host.Example:2222/srv/r.git",
    "ssh://git@host.example:2222/srv/r.git",
    ""
)]
#[case("ssh://host/r", "ssh://host/r", "")]
#[case("ssh://git@host/~me/r", "ssh://git@host/~me/r", "")]
#[case("http://git.ns.svc:3000/o/r", "http://git.ns.svc:3000/o/r", "")]
#[case(
    "https://org@dev.azure.com/org/p/_git/r",
    "https://dev.azure.com/org/p/_git/r",
    ""
)]
#[case("ssh://git@[::1]:22/r", "ssh://git@[::1]:22/r", "")]
fn valid_repository_urls_are_parsed(
    #[case] text: &str,
    #[case] remote: &str,
    #[case] subdir: &str,
) {
    let url = RepositoryUrl::parse(text).unwrap();
    assert_eq!(
        (url.remote(), url.subdir().unwrap_or_default()),
        (remote, subdir)
    );
    assert_eq!(
        RepositoryUrl::parse(&url.to_string()).unwrap(),
        url,
        "its own text reads back"
    );
}

#[rstest]
#[case("", "empty")]
#[case("-oProxyCommand=x", "starts with `-`")]
#[case("--upload-pack=x", "starts with `-`")]
#[case("file:///etc", "scheme `file`")]
#[case("git://host/r", "scheme `git`")]
#[case("ext::sh -c x", "white space")]
#[case("ext::sh", "`::`")]
#[case("git::https://host/r", "scheme `git::https`")]
#[case("ftp://host/r", "scheme `ftp`")]
#[case("HTTPS://host/r", "scheme `HTTPS`")]
#[case("https://host", "no path")]
#[case("https://host/", "no repository path")]
#[case("https:///r", "not a host name")]
#[case("https://me:hunter2@host/r", "contains a password")]
#[case("ssh://git:hunter2@host/r", "contains a password")]
#[case("https://host/r?ref=main", "`gitRepo.branch`")]
#[case("https://host/r#main", "`gitRepo.branch`")]
#[case("https://host/r//../x", "`..`")]
#[case("https://github.com/o/r/../x", "`..`")]
#[case("https://host/a/../r", "`..`")]
#[case("https://host/a\nb", "control")]
#[case("https://host/a\u{0}b", "control")]
#[case("https://host:port/r", "not a port")]
#[case("https://host:70000/r", "not a port")]
#[case("https://host:/r", "not a port")]
#[case("https://-host/r", "not a host name")]
#[case("ssh://-oProxyCommand=x/r", "not a host name")]
#[case("ssh://-l@host/r", "not a user name")]
#[case("git@-host:r", "not a host name")]
#[case("github.com/o/r", "expected https://")]
#[case("/srv/r.git", "expected https://")]
#[case("github.com:o/r", "expected https://")]
#[case("https://github.com/o", "owner/name")]
#[case("https://github.com/o/r/tree/main/x", "web page")]
#[case("git@github.com:-x", "owner/name")]
#[case("git@host:-x", "starts with `-`")]
#[case("git@host:", "no repository path")]
fn invalid_repository_urls_are_refused(#[case] text: &str, #[case] why: &str) {
    let error = RepositoryUrl::parse(text).unwrap_err();
    assert_eq!(
        (error.reason().as_str(), error.is_transient()),
        ("InvalidGitUrl", false)
    );
    assert!(error.to_string().contains(why), "{error}");
}

#[test]
fn password_in_the_url_is_not_quoted_in_the_error() {
    for text in [
        "https://me:hunter2@host/r",
        "ssh://git:hunter2@host/r",
        "https://hunter2@host/r?x",
    ] {
        let error = RepositoryUrl::parse(text).unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn one_repository_has_one_cache_key() {
    let key = |text: &str| RepositoryUrl::parse(text).unwrap().cache_key().to_owned();
    assert_eq!(
        key("https://GitHub.com/o/r.git/a"),
        key("https://github.com/o/r//b")
    );
    assert_ne!(key("https://host/a"), key("https://host/b"));
    assert_ne!(key("https://host/a"), key("http://host/a"));
}

#[test]
fn host_and_scheme_are_parsed() {
    let url = RepositoryUrl::parse("git@GitHub.com:o/r").unwrap();
    assert_eq!((url.host(), url.scheme()), ("github.com", Scheme::Ssh));
    let url = RepositoryUrl::parse("ssh://git@[::1]:22/r").unwrap();
    assert_eq!(url.host(), "::1");
}

proptest! {
    #[test]
    fn any_url_is_refused_or_never_becomes_a_git_option(text in "\\PC{0,60}") {
        if let Ok(url) = RepositoryUrl::parse(&text) {
            prop_assert!(!url.remote().starts_with('-'));
            prop_assert!(!url.host().starts_with('-'));
            prop_assert!(!url.subdir().unwrap_or_default().split('/').any(|part| part == ".."));
            prop_assert_eq!(RepositoryUrl::parse(&url.to_string()).unwrap(), url);
        }
    }

    #[test]
    fn nearly_valid_urls_are_read_or_refused(
        scheme in "(https|http|ssh|file|ext)://", user in "([a-z-]{1,5}(:[a-z]{1,3})?@)?",
        host in "(github.com|[a-z.-]{1,8})", port in "(:[0-9]{1,6})?", path in "[a-z./-]{0,20}",
    ) {
        let text = format!("{scheme}{user}{host}{port}/{path}");
        if let Ok(url) = RepositoryUrl::parse(&text) {
            prop_assert!(!url.remote().contains(":@"));
            prop_assert_eq!(RepositoryUrl::parse(&url.to_string()).unwrap(), url);
        }
    }
}

#[test]
fn url_forms_of_one_repository_are_equal() {
    let url = RepositoryUrl::parse("https://git.test:8443/Team/infra.git").unwrap();
    let is_here = |other| url.is_same_repository(&RepositoryUrl::parse(other).unwrap());
    for same in [
        "https://git.test/team/infra",
        "git@git.test:team/infra.git",
        "git@git.test:/team/infra",
        "ssh://git@git.test:2222/team/infra//modules/web",
    ] {
        assert!(is_here(same), "{same}");
    }
    for other in [
        "https://git.test/team/infra2",
        "https://git2.test/team/infra",
    ] {
        assert!(!is_here(other), "{other}");
    }
}
