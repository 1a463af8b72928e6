use super::*;
use proptest::prelude::*;
use rstest::rstest;

/// `me:hunter2` in base64.
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
fn credentials_are_found_in_every_config_form(
    #[case] config: &str,
    #[case] expected: Option<&str>,
) {
    assert_eq!(user(config, "h.example/team/x").as_deref(), expected);
}

#[rstest]
#[case("https://index.docker.io/v1/")]
#[case("index.docker.io")]
#[case("docker.io")]
#[case("https://registry-1.docker.io/v2/")]
fn docker_hub_credentials_match_all_its_host_names(#[case] key: &str) {
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

/// A matcher with backtracking would not finish in acceptable time.
#[test]
fn host_pattern_with_many_wildcards_matches_in_linear_time() {
    const STARS: usize = 100_000;
    let pattern = format!("{}.example", "a*".repeat(STARS));
    for (letters, fits) in [(STARS, true), (2 * STARS, true), (STARS - 1, false)] {
        let host = format!("{}.example", "a".repeat(letters));
        assert_eq!(host_fits(&pattern, &host), fits, "{letters}");
    }
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
#[case("", "invalid JSON")]
#[case("hunter2", "invalid JSON")]
#[case("\"hunter2\"", "not a JSON object")]
#[case("[]", "not a JSON object")]
#[case("{}", "no credentials")]
#[case(r#"{"auths":{}}"#, "no credentials")]
#[case(r#"{"auths":{"h":{}}}"#, "no credentials")]
#[case(r#"{"auths":"hunter2"}"#, "`auths`")]
#[case(r#"{"auths":{"h":"hunter2"}}"#, "`h`: not an object")]
#[case(r#"{"auths":{"h":{"auth":"hunter2!"}}}"#, "base64")]
#[case(
    r#"{"auths":{"h":{"auth":"aHVudGVyMg=="}}}"#,
    "base64 of `user:password`"
)]
#[case(r#"{"auths":{"h":{"username":"hunter2"}}}"#, "set both")]
#[case(r#"{"credsStore":"desktop"}"#, "credential helper `desktop`")]
#[case(
    r#"{"auths":{"h.example":{}},"credsStore":"osxkeychain"}"#,
    "credential helper `osxkeychain`"
)]
#[case(
    r#"{"auths":{},"credHelpers":{"1.dkr.ecr.us-east-1.amazonaws.com":"ecr-login"}}"#,
    "containerRegistry.provider"
)]
#[case(
    r#"{"auths":{"h":{"auth":"YTpi"}},"credHelpers":"hunter2"}"#,
    "`credHelpers`"
)]
fn invalid_config_is_refused_without_quoting_it(#[case] config: &str, #[case] why: &str) {
    let error = DockerConfig::parse(config.as_bytes()).err().unwrap();
    assert_eq!(
        (error.reason().as_str(), error.is_transient()),
        ("InvalidRegistryCredentials", false)
    );
    assert!(error.to_string().contains(why), "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
}

#[rstest]
#[case::helper_of_registry(
    r#"{"auths":{"a.example":{"auth":"dTpw"}},"credHelpers":{"b.example":"pass"}}"#,
    Some("pass")
)]
#[case::default_helper(
    r#"{"auths":{"a.example":{"auth":"dTpw"}, "b.example": {}},"credsStore":"desktop"}"#,
    Some("desktop")
)]
#[case::with_password(
    r#"{"auths":{"b.example":{"auth":"dTpw"}},"credHelpers":{"b.example":"pass"}}"#,
    None
)]
#[case::helper_of_other_registry(
    r#"{"auths":{"a.example":{"auth":"dTpw"}},"credHelpers":{"c.example":"pass"}}"#,
    None
)]
fn registry_that_needs_a_credential_helper_is_refused(
    #[case] config: &str,
    #[case] helper: Option<&str>,
) {
    let config = read(config);
    let opened = config.open(&ImageName::parse("b.example/x").unwrap());
    match helper {
        None => assert!(opened.is_ok()),
        Some(helper) => {
            let error = opened.err().unwrap();
            let words = [helper, "b.example", "containerRegistry.provider"];
            assert_eq!(error.reason().as_str(), "InvalidRegistryCredentials");
            assert!(
                words.iter().all(|word| error.to_string().contains(word)),
                "{error}"
            );
        }
    }
}

#[rstest]
#[case(r#"{"auths":{"h.example":{"auth":"dTpw"}}}"#, true)]
#[case(r#"{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"}}}"#, true)]
#[case::docker_io(r#"{"auths":{"docker.io":{"auth":"dTpw"}}}"#, false)]
#[case::registry_1_docker_io(
    r#"{"auths":{"https://registry-1.docker.io/v2/":{"auth":"dTpw"}}}"#,
    false
)]
#[case::dockercfg_form(r#"{"h.example":{"auth":"dTpw"}}"#, false)]
fn config_in_a_nonstandard_form_is_normalised(#[case] config: &str, #[case] universal: bool) {
    let config = read(config);
    assert_eq!(config.is_universal(), universal);
    let again = DockerConfig::parse(&config.to_dockerconfigjson())
        .ok()
        .unwrap();
    assert!(again == config && again.is_universal());
}

#[test]
fn derived_secret_is_deterministic_and_reads_back() {
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
    fn arbitrary_config_is_refused_without_quoting_secrets(
        key in "(https?://)?[a-z0-9.*:-]{0,12}(/[a-z0-9/]{0,8})?",
        field in "auth|username|password|identitytoken|registrytoken|email",
        legacy in any::<bool>(),
        helper in proptest::option::of("[a-z-]{1,8}"),
    ) {
        let entry = json!({ key.clone(): { field: "5ecr3t-5ecr3t!" } });
        let mut config = if legacy { entry } else { json!({ "auths": entry }) };
        if let Some(helper) = helper {
            config["credHelpers"] = json!({ key: helper });
        }
        match DockerConfig::parse(config.to_string().as_bytes()) {
            Err(error) => prop_assert!(!error.to_string().contains("5ecr3t"), "{error}"),
            Ok(read) => {
                let again = DockerConfig::parse(&read.to_dockerconfigjson()).ok();
                prop_assert!(again.is_some_and(|again| again == read && again.is_universal()));
            }
        }
    }

    #[test]
    fn credentials_apply_only_to_the_named_registry(
        host in "[a-z][a-z0-9]{0,5}(\\.[a-z]{1,4}){1,2}(:[1-9][0-9]{0,3})?",
        path in "[a-z0-9]{1,5}(/[a-z0-9]{1,5}){0,2}",
        depth in 0_usize..3,
        scheme in "(https?://)?",
    ) {
        let prefix: Vec<&str> = path.split('/').take(depth).collect();
        let key = format!("{scheme}{host}/{}", prefix.join("/"));
        let config = json!({"auths": {key: {"username": "u", "password": "p"}}}).to_string();
        let config = DockerConfig::parse(config.as_bytes()).ok().unwrap();
        let found = |image: &str| config.credentials_for(&ImageName::parse(image).unwrap()).is_some();
        // The parser ignores a path `v1` or `v2`, because it is an API version.
        prop_assume!(!["v1", "v2"].contains(&prefix.join("/").as_str()));
        let (image, other) = (format!("{host}/{path}"), format!("other-{host}/{path}"));
        prop_assert!(found(&image));
        prop_assert!(!found(&other));
    }

    #[test]
    fn written_config_reads_back(user in "[a-z]{1,5}", password in "\\PC{1,12}", host in "[a-z]{1,5}\\.[a-z]{1,5}") {
        let config = json!({"auths": {host.clone(): {"username": user, "password": password}}}).to_string();
        let config = DockerConfig::parse(config.as_bytes()).ok().unwrap();
        let again = DockerConfig::parse(&config.to_dockerconfigjson()).ok().unwrap();
        prop_assert!(config == again);
    }
}

#[test]
fn a_config_with_too_many_values_is_refused() {
    let many = vec![json!({"": 0}); json_size::VALUES];
    let config = json!({"auths": {"h.example": {"auth": AUTH}}, "x": many});
    let error = DockerConfig::parse(config.to_string().as_bytes())
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("values, more than the limit of 10000"),
        "{error}"
    );
}
