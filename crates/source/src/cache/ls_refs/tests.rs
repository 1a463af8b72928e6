use proptest::prelude::*;
use rstest::rstest;

use super::*;

const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

fn query(references: &[Reference]) -> LsRefs {
    let url = RepositoryUrl::parse("https://host/r").unwrap();
    LsRefs::new(&url, &references.iter().cloned().collect()).unwrap()
}

/// Returns the query of branch `main` and tag `v1`.
fn main_and_v1() -> LsRefs {
    query(&[
        Reference::branch(Some("main")).unwrap(),
        Reference::tag("v1").unwrap(),
    ])
}

fn packets(lines: &[&str]) -> Vec<u8> {
    lines
        .iter()
        .flat_map(|line| packet(line))
        .chain(FLUSH.to_vec())
        .collect()
}

fn text(request: Option<Vec<u8>>) -> Option<String> {
    request.map(|request| String::from_utf8(request).unwrap())
}

/// Returns as many packets with `line` as fit into `bytes` bytes, and a flush packet.
fn padded(bytes: usize, line: &str) -> Vec<u8> {
    let count = (bytes - FLUSH.len()) / packet(line).len();
    packets(&vec![line; count])
}

#[test]
fn request_contains_only_offered_capabilities() {
    let prefixes =
        "0014ref-prefix HEAD\n001fref-prefix refs/heads/main\n001cref-prefix refs/tags/v1\n0000";
    let old = packets(&["version 2", "ls-refs", "fetch"]);
    let expected = format!("0014command=ls-refs\n00010009peel\n000csymrefs\n{prefixes}");
    assert_eq!(text(main_and_v1().request(&old)), Some(expected));
    let new = packets(&[
        "version 2",
        "agent=git/2.53",
        "ls-refs=unborn",
        "object-format=sha1",
    ]);
    let with_header = [SERVICE, &new].concat();
    for advertisement in [new, with_header] {
        let request = text(main_and_v1().request(&advertisement)).unwrap();
        assert!(
            request.contains("agent=alustan/") && request.contains("0017object-format=sha1\n0001"),
            "{request}"
        );
        assert!(request.ends_with(prefixes), "{request}");
    }
}

#[rstest]
#[case::v0(&["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa HEAD\0symref=HEAD:refs/heads/main"])]
#[case::v1(&["version 1", "ls-refs"])]
#[case::sha256(&["version 2", "ls-refs", "object-format=sha256"])]
#[case::no_ls_refs(&["version 2", "ls-refsx", "fetch"])]
#[case::error(&["ERR repository not found"])]
#[case::empty(&[])]
fn other_advertisement_falls_back_to_git(#[case] lines: &[&str]) {
    let advertisement = packets(lines);
    assert!(main_and_v1().request(&advertisement).is_none());
    let with_header = [SERVICE, &advertisement].concat();
    assert!(main_and_v1().request(&with_header).is_none());
}

#[test]
fn advertisement_beyond_a_limit_falls_back_to_git() {
    let capabilities = |count: usize| {
        let extra = std::iter::repeat_n("x", count - 2);
        packets(
            &["version 2", "ls-refs"]
                .into_iter()
                .chain(extra)
                .collect::<Vec<_>>(),
        )
    };
    assert!(
        main_and_v1()
            .request(&capabilities(MAX_CAPABILITIES))
            .is_some()
    );
    assert!(
        main_and_v1()
            .request(&capabilities(MAX_CAPABILITIES + 1))
            .is_none()
    );
    let sized = |bytes: usize| {
        let rest = bytes - packets(&["version 2", "ls-refs", ""]).len();
        packets(&["version 2", "ls-refs", &"x".repeat(rest)])
    };
    let most = LsRefs::ADVERTISEMENT_BYTES;
    assert!(main_and_v1().request(&sized(most)).is_some());
    assert!(main_and_v1().request(&sized(most + 1)).is_none());
}

#[test]
fn listing_has_the_format_of_ls_remote() {
    let response = packets(&[
        &format!("{A} HEAD symref-target:refs/heads/main"),
        &format!("{A} refs/heads/main"),
        &format!("{B} refs/heads/main-2 unknown:x"),
        &format!("{B} refs/tags/v1 peeled:{A}"),
        &format!("{B} refs/tags/v1.1 peeled:{A}"),
    ]);
    let expected = format!(
        "ref: refs/heads/main\tHEAD\n{A}\tHEAD\n{A}\trefs/heads/main\n{B}\trefs/tags/v1\n{A}\trefs/tags/v1^{{}}\n"
    );
    let listing = main_and_v1().listing(&response);
    assert_eq!(listing, Some(Listing::new("https://host/r", expected)));
    let empty = Listing::new("https://host/r", String::new());
    assert_eq!(main_and_v1().listing(FLUSH), Some(empty));
}

#[test]
fn name_that_is_not_utf8_is_not_listed() {
    let line = [A.as_bytes(), b" refs/heads/main\xff\n"].concat();
    let length = format!("{:04x}", line.len() + 4);
    let response = [length.as_bytes(), &line, FLUSH].concat();
    let empty = Listing::new("https://host/r", String::new());
    assert_eq!(main_and_v1().listing(&response), Some(empty));
}

#[rstest]
#[case::error(packets(&["ERR access denied"]))]
#[case::unborn(packets(&["unborn HEAD symref-target:refs/heads/main"]))]
#[case::sha256(packets(&[&format!("{A}{} HEAD", &A[..24])]))]
#[case::not_an_id(packets(&[&format!("{} HEAD", "g".repeat(40))]))]
#[case::no_name(packets(&[A]))]
#[case::empty_name(packets(&[&format!("{A} ")]))]
#[case::peeled_is_not_an_id(packets(&[&format!("{A} refs/tags/v1 peeled:{B}{B}")]))]
#[case::line_feed_in_symref(packets(&[&format!("{A} HEAD symref-target:refs/heads/x\n{B}\tHEAD")]))]
#[case::no_flush(packet(&format!("{A} HEAD")))]
#[case::empty(Vec::new())]
#[case::bytes_after_flush([packets(&[&format!("{A} HEAD")]), b"0".to_vec()].concat())]
#[case::two_listings([packets(&[&format!("{A} HEAD")]), FLUSH.to_vec()].concat())]
#[case::delimiter([DELIMITER, FLUSH].concat())]
#[case::response_end(b"00020000".to_vec())]
#[case::length_below_header(b"00030000".to_vec())]
#[case::empty_packet(b"00040000".to_vec())]
#[case::length_with_sign([b"+032", A.as_bytes(), b" HEAD\n0000"].concat())]
#[case::length_is_not_hex(b"00g20000".to_vec())]
#[case::length_beyond_input(b"ffef".to_vec())]
#[case::html(b"<!DOCTYPE html><html></html>".to_vec())]
fn malformed_response_falls_back_to_git(#[case] response: Vec<u8>) {
    assert_eq!(main_and_v1().listing(&response), None);
}

#[test]
fn response_beyond_a_limit_falls_back_to_git() {
    let is_read = |response: &[u8]| main_and_v1().listing(response).is_some();
    let count = |count: usize| packets(&vec![format!("{A} refs/heads/main-2").as_str(); count]);
    assert!(is_read(&count(MAX_REFERENCES)));
    assert!(!is_read(&count(MAX_REFERENCES + 1)));
    let name = |bytes: usize| packets(&[&format!("{A} {}", "x".repeat(bytes))]);
    assert!(is_read(&name(MAX_NAME_BYTES)));
    assert!(!is_read(&name(MAX_NAME_BYTES + 1)));
    let target =
        |bytes: usize| packets(&[&format!("{A} HEAD symref-target:{}", "x".repeat(bytes))]);
    assert!(is_read(&target(MAX_NAME_BYTES)));
    assert!(!is_read(&target(MAX_NAME_BYTES + 1)));
    let attribute = |bytes: usize| {
        let line = format!("{A} HEAD ");
        packets(&[&format!("{line}{}", "x".repeat(bytes - 5 - line.len()))])
    };
    assert!(is_read(&attribute(MAX_PACKET_BYTES)));
    assert!(!is_read(&attribute(MAX_PACKET_BYTES + 1)));
    let line = format!("{A} {}", "x".repeat(MAX_NAME_BYTES));
    assert!(is_read(&padded(LsRefs::RESPONSE_BYTES, &line)));
    assert!(!is_read(&padded(LsRefs::RESPONSE_BYTES + 2048, &line)));
}

#[test]
fn commit_ids_and_too_many_names_are_not_queried() {
    let url = RepositoryUrl::parse("https://host/r").unwrap();
    let commit = BTreeSet::from([Reference::commit(A).unwrap()]);
    assert!(LsRefs::new(&url, &commit).is_none());
    let branches = |count: usize| -> BTreeSet<Reference> {
        (0..count)
            .map(|number| Reference::branch(Some(&format!("b{number}"))).unwrap())
            .collect()
    };
    // Each query has the additional name HEAD.
    assert!(LsRefs::new(&url, &branches(MAX_NAMES - 1)).is_some());
    assert!(LsRefs::new(&url, &branches(MAX_NAMES)).is_none());
}

proptest! {
    #[test]
    fn any_response_is_read_or_refused(
        lines in proptest::collection::vec("([ab]{40})?[ -~\\n\\t]{0,60}", 0..4),
        tail in proptest::collection::vec(any::<u8>(), 0..12),
    ) {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        for input in [packets(&lines), [packets(&lines), tail.clone()].concat(), tail] {
            let _ = main_and_v1().request(&input);
            let _ = main_and_v1().listing(&input);
        }
    }
}
