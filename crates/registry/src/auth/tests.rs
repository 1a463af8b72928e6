use super::*;

#[test]
fn challenges_are_read() {
    let challenges = read_challenges(r#"Bearer realm="https://a/t",service="s",scope="x""#);
    assert_eq!(
        challenges,
        [Challenge::Bearer {
            realm: "https://a/t".into(),
            service: Some("s".into())
        }]
    );
    assert_eq!(read_challenges(r#"Basic realm="x""#), [Challenge::Basic]);
    assert_eq!(read_challenges("Negotiate"), [Challenge::Unknown]);
    assert!(read_challenges("\"").is_empty());
}

#[test]
fn token_is_cached_for_less_than_its_lifetime() {
    let life = |body: &str| read_token(body.as_bytes()).map(|grant| grant.lifetime.as_secs());
    assert_eq!(life(r#"{"token":"t","expires_in":200}"#), Some(150));
    assert_eq!(life(r#"{"access_token":"t"}"#), Some(45));
    assert_eq!(life(r#"{"token":"t","expires_in":86400}"#), Some(300));
    for other in ["\"200\"", "-1", "1.5", "null", "[]"] {
        let body = format!(r#"{{"token":"","access_token":"t","expires_in":{other}}}"#);
        assert_eq!(life(&body), Some(45), "{body}");
    }
    for body in [
        "",
        "{}",
        r#"{"token":""}"#,
        r#"{"token":3}"#,
        r#"{"token":"a\nb"}"#,
        "[]",
    ] {
        assert_eq!(life(body), None, "{body}");
    }
}

#[test]
fn unknown_fields_of_a_token_response_are_skipped() {
    // serde_json refuses values with more than 128 nested levels, but skips unknown fields with any number of levels.
    let deep = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
    let other = format!("[{}{deep}]", r#"{"":0},"#.repeat(8_000));
    let body = format!(r#"{{"x":{other},"token":"t","expires_in":200}}"#);
    assert!(body.len() < ANSWER, "{}", body.len());
    let life = read_token(body.as_bytes()).map(|grant| grant.lifetime.as_secs());
    assert_eq!(life, Some(150));
}
