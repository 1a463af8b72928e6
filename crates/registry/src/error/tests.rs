use super::*;
use rstest::rstest;

#[rstest]
#[case(401, "RegistryUnauthorized", false)]
#[case(403, "RegistryForbidden", false)]
#[case(404, "ImageNotFound", false)]
#[case(429, "RegistryRateLimited", true)]
#[case(500, "RegistryUnreachable", true)]
#[case(503, "RegistryUnreachable", true)]
#[case(400, "RegistryError", false)]
fn statuses(#[case] code: u16, #[case] reason: &str, #[case] transient: bool) {
    let error = OciDistributionError::ServerError {
        code,
        url: "u".into(),
        message: "m".into(),
    };
    let (failure, _) = read(&error);
    assert_eq!(
        (failure.reason(), failure.is_transient()),
        (reason, transient)
    );
}

#[rstest]
#[case("DENIED", "RegistryForbidden")]
#[case("UNAUTHORIZED", "RegistryUnauthorized")]
#[case("TOOMANYREQUESTS", "RegistryRateLimited")]
#[case("NAME_UNKNOWN", "ImageNotFound")]
#[case("SOMETHING", "RegistryError")]
fn envelopes(#[case] code: &str, #[case] reason: &str) {
    let text = format!(r#"{{"errors":[{{"code":"{code}","message":"why"}}]}}"#);
    let envelope: OciEnvelope = serde_json::from_str(&text).unwrap();
    let (failure, detail) = read(&OciDistributionError::RegistryError {
        envelope,
        url: "u".into(),
    });
    assert_eq!((failure.reason(), detail.as_str()), (reason, "why"));
}

#[test]
fn long_answers_are_cut_on_a_character() {
    assert!(short(&"ü".repeat(1000)).len() <= 300);
    assert_eq!(short(" a\n b "), "a b");
}
