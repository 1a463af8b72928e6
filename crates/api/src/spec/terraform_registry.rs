//! Tokens of private module and provider registries (`spec.terraformRegistries`).

use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::references::TokenRef;

const HOST: &str = r"self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*(:[1-9][0-9]{0,4})?$')";
const HOST_HELP: &str = "must be a host name in lowercase with an optional port, without a scheme, such as registry.example.com:8443; internationalized names in ASCII form (xn--…)";
const NOT_443: &str = "!self.endsWith(':443')";
const NOT_443_HELP: &str = "must not have port 443, which is the default: remove it";

/// Maximum number of entries of `spec.terraformRegistries`.
pub const MAX_TERRAFORM_REGISTRIES: usize = 16;
/// Maximum length of a host with its port, in characters.
const MAX_HOST: usize = 255;
/// Maximum length of a token, in bytes.
const MAX_TOKEN: usize = 8 << 10;

/// Private registry of modules or providers, and its token.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[x_kube(crates(kube_core = "::kube_core"))]
#[serde(rename_all = "camelCase")]
pub struct TerraformRegistry {
    /// Host of the registry as in module and provider sources, in lowercase, with a port if it is not 443. Example: `registry.example.com`
    /// for `source = "registry.example.com/team/network/aws"`. Internationalized names have their ASCII form: `xn--…`.
    #[schemars(length(max = 255))]
    #[x_kube(validation = Rule::new(HOST).message(HOST_HELP), validation = Rule::new(NOT_443).message(NOT_443_HELP))]
    pub host: String,
    /// Key of a Secret with the token, which the engine sends to the registry as `Authorization: Bearer`. Default of `key`: token.
    pub secret_ref: TokenRef,
}

/// Checks the host of a registry. The CRD has the same check; this check covers a CRD that is older than the operator.
///
/// # Errors
/// Returns the reason for which `host` is invalid.
pub fn check_registry_host(host: &str) -> Result<(), &'static str> {
    let (name, port) = host
        .split_once(':')
        .map_or((host, None), |(name, port)| (name, Some(port)));
    let is_label = |label: &str| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty()
            && label.bytes().all(plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_port = |port: &str| {
        !port.starts_with('0')
            && port.bytes().all(|byte| byte.is_ascii_digit())
            && port.parse::<u16>().is_ok()
    };
    if host.len() > MAX_HOST || !name.split('.').all(is_label) || !port.is_none_or(is_port) {
        return Err(
            "must be a host name in lowercase with an optional port, without a scheme, such as \
             registry.example.com:8443",
        );
    }
    if port == Some("443") {
        return Err("must not have port 443, which is the default: remove it");
    }
    Ok(())
}

/// Parses a token. White space around the token is ignored, for example the line break at the end of a file.
///
/// # Errors
/// Returns the reason for which the token is invalid, without the token.
pub fn parse_registry_token(bytes: &[u8]) -> Result<&str, &'static str> {
    let token = bytes.trim_ascii();
    if token.is_empty() {
        return Err("the token is empty");
    }
    if token.len() > MAX_TOKEN {
        return Err("the token has more than 8192 bytes");
    }
    match std::str::from_utf8(token) {
        Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(text),
        _ => Err("the token contains characters other than visible ASCII characters"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_host_has_no_scheme_and_no_default_port() {
        let long = ["a".repeat(63).as_str(); 4].join(".");
        for host in [
            "registry.example.com",
            "registry.example.com:8443",
            "localhost:1",
            "10.0.0.1:65535",
            "xn--80akhbyknj4f.test",
            long.as_str(),
        ] {
            assert_eq!(check_registry_host(host), Ok(()), "{host}");
        }
        let longer = format!("{long}.b");
        for host in [
            "",
            "https://a.test",
            "a.test/",
            "A.test",
            "-a.test",
            "a-.test",
            "a..test",
            "a.test:",
            "a.test:0",
            "a.test:65536",
            "a.test:+8",
            "a.test:8:9",
            "a_b.test",
            "испытание.test",
            "[::1]:8443",
            "a.test:443",
            longer.as_str(),
        ] {
            assert!(check_registry_host(host).is_err(), "{host}");
        }
    }

    #[test]
    fn registry_token_is_one_word_of_bounded_size() {
        assert_eq!(parse_registry_token(b" abc.DEF-1=\n"), Ok("abc.DEF-1="));
        let longest = "x".repeat(MAX_TOKEN);
        assert_eq!(
            parse_registry_token(longest.as_bytes()),
            Ok(longest.as_str())
        );
        let too_long = format!("{longest}x");
        for token in ["", " \n", "a b", "a\nb", "é", "a\0b", &too_long] {
            let why = parse_registry_token(token.as_bytes()).unwrap_err();
            assert!(why.starts_with("the token "), "{token:?}: {why}");
        }
        assert!(parse_registry_token(&[0xff, 0xfe]).is_err());
    }
}
