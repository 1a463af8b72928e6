//! Repository URLs and reference names: none becomes an option of git, and a parsed URL survives a round trip through text.
#![no_main]

use alustan_source::{Reference, RepositoryUrl};

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(url) = RepositoryUrl::parse(text) {
        assert!(!url.remote().starts_with('-') && !url.host().starts_with('-'));
        let mut folders = url.subdir().unwrap_or_default().split('/');
        assert!(folders.all(|part| part != ".."));
        assert_eq!(RepositoryUrl::parse(&url.to_string()).ok(), Some(url));
    }
    for reference in [Reference::branch(Some(text)), Reference::tag(text)] {
        assert!(reference.is_err() || !text.starts_with('-'));
    }
    if Reference::commit(text).is_ok() {
        assert!(text.len() == 40 || text.len() == 64);
    }
});
