//! Tests of git output that a local server cannot produce. The tests in `tests/` cover other output with real servers.

use super::*;
use rstest::rstest;

#[rstest]
#[case(
    "ERROR: Repository not found.\nfatal: Could not read from remote repository.",
    "RepositoryNotFound"
)]
#[case(
    "remote: Repository not found.\nfatal: repository 'https://github.com/o/r/' not found",
    "RepositoryNotFound"
)]
#[case(
    "remote: The project you were looking for could not be found or you don't have permission to view it.",
    "RepositoryNotFound"
)]
#[case(
    "fatal: could not read Username for 'https://github.com': terminal prompts disabled",
    "GitAuthenticationFailed"
)]
#[case(
    "fatal: Authentication failed for 'https://github.com/o/r/'",
    "GitAuthenticationFailed"
)]
#[case(
    "git@github.com: Permission denied (publickey).",
    "GitAuthenticationFailed"
)]
#[case(
    "fatal: unable to access 'https://h/r/': Problem with the SSL CA cert (path? access rights?)",
    "GitAuthorityUnreadable"
)]
#[case(
    "fatal: unable to access 'https://h/r/': The requested URL returned error: 403",
    "GitAuthenticationFailed"
)]
#[case(
    "fatal: unable to access 'https://h/r/': The requested URL returned error: 429",
    "GitRateLimited"
)]
#[case(
    "fatal: unable to access 'https://h/r/': The requested URL returned error: 503",
    "RepositoryUnreachable"
)]
#[case(
    "fatal: unable to access 'https://h/r/': Could not resolve host: h",
    "RepositoryUnreachable"
)]
#[case(
    "fatal: unable to access 'https://h/r/': Could not resolve proxy: p",
    "RepositoryUnreachable"
)]
#[case(
    "ssh: Could not resolve hostname h: Temporary failure in name resolution",
    "RepositoryUnreachable"
)]
#[case(
    "ssh: connect to host h port 22: Connection timed out",
    "RepositoryUnreachable"
)]
#[case(
    "kex_exchange_identification: Connection closed by remote host",
    "RepositoryUnreachable"
)]
#[case(
    "error: RPC failed; curl 92 HTTP/2 stream 5 was not closed cleanly",
    "RepositoryUnreachable"
)]
#[case(
    "fatal: early EOF\nfatal: fetch-pack: invalid index-pack output",
    "RepositoryUnreachable"
)]
#[case(
    "fatal: unable to access 'https://h/r/': SSL certificate problem: unable to get local issuer certificate",
    "GitTlsFailed"
)]
#[case(
    "fatal: unable to access 'https://h/r/': server certificate verification failed. CAfile: none CRLfile: none",
    "GitTlsFailed"
)]
#[case(
    "Load key \"/x/id\": invalid format\ngit@h: Permission denied (publickey).",
    "SshKeyInvalid"
)]
#[case(
    "No ED25519 host key is known for h and you have requested strict checking.\nHost key verification failed.",
    "HostKeyUnknown"
)]
#[case(
    "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
    "HostKeyMismatch"
)]
#[case("fatal: remote error: upload-pack: not our ref 0123", "RevisionMoved")]
#[case(
    "error: Server does not allow request for unadvertised object 0123",
    "RevisionMoved"
)]
#[case("fatal: something new", "GitFailed")]
fn git_output_determines_the_reason(#[case] stderr: &str, #[case] reason: &str) {
    assert_eq!(classify(stderr).reason().as_str(), reason);
}

#[test]
fn last_informative_lines_of_git_are_shown() {
    let stderr = "@@@@@@@\n@ WARNING: X @\n@@@@@@\nfirst\n\nERROR: Repository not found.\n\
                  fatal: Could not read from remote repository.\n\nPlease make sure you have the correct access rights\n\
                  and the repository exists.\n";
    assert_eq!(last_lines(stderr), "first; ERROR: Repository not found.");
    assert!(last_lines(&"ü".repeat(2000)).len() <= 600);
}
