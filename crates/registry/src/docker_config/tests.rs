use super::*;
use proptest::prelude::*;
use rstest::rstest;

/// `me:hunter2`
const AUTH: &str = "bWU6aHVudGVyMg==";

fn read(config: &str) -> DockerConfig {
    DockerConfig::parse(config.as_bytes()).ok().unwrap()
}

fn user(config: &str, image: &str) -> Option<String> {
    match read(config).credentials_for(&ImageName::parse(image).ok()?)? {
        Credential::Basic { username, password } => Some(format!("{username}:{password}")),
        Credential::Identity(token) => Some(format!("identity {token}")),
        Credential::Bearer(token) => Some(format!("bearer {token}")),
    }
}

#[rstest]
#[case::auth(&format!(r#"{{"auths":{{"h.example":{{"auth":"{AUTH}"}}}}}}"#), Some("me:hunter2"))]
#[case::unpadded(
    r#"{"auths":{"h.example":{"auth":"bWU6aHVudGVyMg"}}}"#,
    Some("me:hunter2")
)]
#[case::user_and_password(
    r#"{"auths":{"h.example":{"username":"u","password":"p"}}}"#,
    Some("u:p")
)]
#[case::auth_wins_over_an_empty_user(&format!(r#"{{"auths":{{"h.example":{{"username":"","auth":"{AUTH}"}}}}}}"#), Some("me:hunter2"))]
#[case::identity(&format!(r#"{{"auths":{{"h.example":{{"auth":"{AUTH}","identitytoken":"t"}}}}}}"#), Some("identity t"))]
#[case::bearer(r#"{"auths":{"h.example":{"registrytoken":"t"}}}"#, Some("bearer t"))]
#[case::dockercfg(&format!(r#"{{"h.example":{{"auth":"{AUTH}","email":"x@y"}}}}"#), Some("me:hunter2"))]
#[case::scheme(&format!(r#"{{"auths":{{"https://h.example":{{"auth":"{AUTH}"}}}}}}"#), Some("me:hunter2"))]
#[case::version(&format!(r#"{{"auths":{{"https://H.example/v2/":{{"auth":"{AUTH}"}}}}}}"#), Some("me:hunter2"))]
#[case::helpers_beside(&format!(r#"{{"auths":{{"h.example":{{"auth":"{AUTH}"}}}},"credsStore":"x"}}"#), Some("me:hunter2"))]
#[case::glob(&format!(r#"{{"auths":{{"*.example":{{"auth":"{AUTH}"}}}}}}"#), Some("me:hunter2"))]
#[case::part_glob(&format!(r#"{{"auths":{{"h*.ex*le":{{"auth":"{AUTH}"}}}}}}"#), Some("me:hunter2"))]
#[case::glob_is_one_label(&format!(r#"{{"auths":{{"*":{{"auth":"{AUTH}"}}}}}}"#), None)]
#[case::other_host(&format!(r#"{{"auths":{{"x.example":{{"auth":"{AUTH}"}}}}}}"#), None)]
#[case::other_port(&format!(r#"{{"auths":{{"h.example:5000":{{"auth":"{AUTH}"}}}}}}"#), None)]
#[case::path(&format!(r#"{{"auths":{{"h.example/team":{{"auth":"{AUTH}"}}}}}}"#), Some("me:hunter2"))]
#[case::other_path(&format!(r#"{{"auths":{{"h.example/tea":{{"auth":"{AUTH}"}}}}}}"#), None)]
fn shapes(#[case] config: &str, #[case] expected: Option<&str>) {
    assert_eq!(user(config, "h.example/team/x").as_deref(), expected);
}

#[rstest]
#[case("https://index.docker.io/v1/")]
#[case("index.docker.io")]
#[case("docker.io")]
#[case("https://registry-1.docker.io/v2/")]
fn docker_hub_is_known_by_all_its_names(#[case] key: &str) {
    let config = format!(r#"{{"auths":{{"{key}":{{"auth":"{AUTH}"}}}}}}"#);
    assert_eq!(user(&config, "alpine").as_deref(), Some("me:hunter2"));
    assert_eq!(
        user(&config, "docker.io/a/b").as_deref(),
        Some("me:hunter2")
    );
    let written = DockerConfig::parse(config.as_bytes())
        .ok()
        .unwrap()
        .to_dockerconfigjson();
    assert!(
        String::from_utf8(written)
            .unwrap()
            .contains("\"https://index.docker.io/v1/\"")
    );
}

#[test]
fn the_longest_key_wins() {
    let config = r#"{"auths":{
        "h.example":{"username":"all","password":"p"},
        "h.example/a":{"username":"a","password":"p"},
        "h.example/a/b":{"username":"ab","password":"p"},
        "*.example":{"username":"glob","password":"p"}}}"#;
    for (image, expected) in [
        ("h.example/a/b/c", "ab:p"),
        ("h.example/a/x", "a:p"),
        ("h.example/x", "all:p"),
        ("i.example/x", "glob:p"),
    ] {
        assert_eq!(user(config, image).as_deref(), Some(expected));
    }
}

#[rstest]
#[case("", "no JSON")]
#[case("hunter2", "no JSON")]
#[case("\"hunter2\"", "no JSON object")]
#[case("[]", "no JSON object")]
#[case("{}", "no credentials")]
#[case(r#"{"auths":{}}"#, "no credentials")]
#[case(r#"{"auths":{"h":{}}}"#, "no credentials")]
#[case(r#"{"auths":"hunter2"}"#, "`auths`")]
#[case(r#"{"auths":{"h":"hunter2"}}"#, "`h` is no object")]
#[case(r#"{"auths":{"h":{"auth":"hunter2!"}}}"#, "base64")]
#[case(
    r#"{"auths":{"h":{"auth":"aHVudGVyMg=="}}}"#,
    "base64 of `user:password`"
)]
#[case(r#"{"auths":{"h":{"username":"hunter2"}}}"#, "only one of")]
#[case(r#"{"credsStore":"desktop"}"#, "credential helper")]
fn what_cannot_be_read_is_told_without_repeating_it(#[case] config: &str, #[case] why: &str) {
    let error = DockerConfig::parse(config.as_bytes()).err().unwrap();
    assert_eq!(
        (error.reason(), error.is_transient()),
        ("InvalidRegistryCredentials", false)
    );
    assert!(error.to_string().contains(why), "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
}

#[test]
fn the_derived_secret_reads_back_and_never_flaps() {
    let a = r#"{"auths":{"b.example":{"username":"u","password":"p"},"a.example":{"auth":"dTpw"}},"HttpHeaders":{}}"#;
    let b =
        r#"{"a.example":{"username":"u","password":"p"},"https://b.example/v2/":{"auth":"dTpw"}}"#;
    let write = |text: &str| {
        DockerConfig::parse(text.as_bytes())
            .ok()
            .unwrap()
            .to_dockerconfigjson()
    };
    assert_eq!(write(a), write(b));
    assert_eq!(
        String::from_utf8(write(a)).unwrap(),
        r#"{"auths":{"a.example":{"auth":"dTpw"},"b.example":{"auth":"dTpw"}}}"#
    );
    let again = DockerConfig::parse(&write(a)).ok().unwrap();
    assert!(again == DockerConfig::parse(a.as_bytes()).ok().unwrap());
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let _ = DockerConfig::parse(&bytes);
    }

    #[test]
    fn what_is_written_reads_back(user in "[a-z]{1,5}", password in "\\PC{1,12}", host in "[a-z]{1,5}\\.[a-z]{1,5}") {
        let config = json!({"auths": {host.clone(): {"username": user, "password": password}}}).to_string();
        let config = DockerConfig::parse(config.as_bytes()).ok().unwrap();
        let again = DockerConfig::parse(&config.to_dockerconfigjson()).ok().unwrap();
        prop_assert!(config == again);
    }
}
