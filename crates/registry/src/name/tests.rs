use super::*;
use proptest::prelude::*;
use rstest::rstest;

#[rstest]
#[case("alpine", "docker.io", "library/alpine")]
#[case("alustan/terraform", "docker.io", "alustan/terraform")]
#[case("docker.io/alustan/terraform", "docker.io", "alustan/terraform")]
#[case("docker.io/alpine", "docker.io", "library/alpine")]
#[case("index.docker.io/a/b", "docker.io", "a/b")]
#[case("registry-1.docker.io/a/b", "docker.io", "a/b")]
#[case("localhost/a", "localhost", "a")]
#[case("host:5000/a/b", "host:5000", "a/b")]
#[case("host:5000/a", "host:5000", "a")]
#[case("registry.example.com/a", "registry.example.com", "a")]
#[case("[::1]:5000/a", "[::1]:5000", "a")]
#[case("10.0.0.1/a", "10.0.0.1", "a")]
#[case(
    "123.dkr.ecr.eu-west-1.amazonaws.com/team/x_y__z--w.v",
    "123.dkr.ecr.eu-west-1.amazonaws.com",
    "team/x_y__z--w.v"
)]
fn valid_image_names_are_parsed(
    #[case] text: &str,
    #[case] registry: &str,
    #[case] repository: &str,
) {
    let name = ImageName::parse(text).unwrap();
    assert_eq!((name.registry(), name.repository()), (registry, repository));
    assert_eq!(ImageName::parse(&name.to_string()).unwrap(), name);
}

#[rstest]
#[case("docker.io/alustan/terrform (image name to be used)", "white space")]
#[case("", "empty")]
#[case("https://docker.io/a", "scheme")]
#[case("host/A", "upper case")]
#[case("Host.example/a", "upper case")]
#[case("Alpine", "upper case")]
#[case("host.example/a:tag", "tag")]
#[case("alpine:3", "tag")]
#[case("host:5000/a:tag", "tag")]
#[case("host:5000", "tag")]
#[case("a@sha256:00", "digest")]
#[case("host.example//a", "empty")]
#[case("host.example/a/", "empty")]
#[case("/a", "empty")]
#[case("host.example/-a", "invalid component")]
#[case("host.example/a_", "invalid component")]
#[case("host.example/a..b", "invalid component")]
#[case("host.example/a___b", "invalid component")]
#[case("host.example/a.-b", "invalid component")]
#[case("host.example/ü", "invalid component")]
#[case("host.example/../a", "invalid component")]
#[case("-host.example/a", "not a host")]
#[case("host:port/a", "not a port")]
#[case("host:99999/a", "not a port")]
#[case("[::g]:5000/a", "not an IPv6")]
#[case("a\nb", "white space")]
fn invalid_image_names_are_refused(#[case] text: &str, #[case] why: &str) {
    let error = ImageName::parse(text).unwrap_err();
    assert_eq!(
        (error.reason().as_str(), error.is_transient()),
        ("InvalidImageName", false)
    );
    assert!(error.to_string().contains(why), "{error}");
}

#[test]
fn long_names_are_refused() {
    assert!(ImageName::parse(&format!("host.example/{}", "a".repeat(255))).is_ok());
    assert!(ImageName::parse(&format!("host.example/{}", "a".repeat(256))).is_err());
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_and_reads_back(text in "(\\PC{0,40}|[a-z:/@.-]{0,40})") {
        if let Ok(name) = ImageName::parse(&text) {
            prop_assert_eq!(ImageName::parse(&name.to_string()).unwrap(), name);
        }
    }
}
