//! Reads the file of `--terraform-cli-config`.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use alustan_api::check_registry_host;
use alustan_api::cli_config::{CliConfig, InstallationMethod};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use hcl_edit::expr::{Expression, ObjectKey};
use hcl_edit::structure::{Attribute, Block, Body, Structure};
use reqwest::Url;

/// Maximum size of the file, in bytes. Pods receive its content in an environment variable.
const MAX_BYTES: usize = 16 << 10;
/// Maximum nesting depth of brackets. The parser is recursive.
const MAX_DEPTH: usize = 8;
/// Maximum length of a pattern of providers, in bytes.
const MAX_PATTERN: usize = 255;
/// Services of a `host` block of which the engine needs the URLs.
const SERVICES: [&str; 2] = ["modules.v1", "providers.v1"];
/// Prefix of the ASCII form of an internationalized label. The engine refuses it in `host` blocks.
const ACE_PREFIX: &str = "xn--";

/// Settings of the CLI configuration that are refused, each with the reason.
const REFUSED: [(&str, &str); 6] = [
    (
        "credentials",
        "every pod could read the token; set spec.terraformRegistries in the resources instead",
    ),
    (
        "credentials_helper",
        "pods have no credentials helper; set spec.terraformRegistries in the resources instead",
    ),
    (
        "dev_overrides",
        "the engine would check neither versions nor checksums of these providers",
    ),
    (
        "filesystem_mirror",
        "pods do not have this folder; add the providers to /usr/local/share/terraform/plugins in the base image instead",
    ),
    (
        "plugin_cache_dir",
        "spec.cache of the resources configures the provider cache",
    ),
    (
        "plugin_cache_may_break_dependency_lock_file",
        "spec.cache of the resources configures the provider cache",
    ),
];

/// Reads and checks the CLI configuration of the engine. Returns `None` without a file, or if the file has no settings.
///
/// # Errors
/// If the file is unreadable, too large or not valid HCL, or if it has a setting that is unknown or refused.
pub(crate) fn read(file: &Path) -> Result<Option<CliConfig>> {
    let size = match std::fs::metadata(file) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    ensure!(
        size <= MAX_BYTES as u64,
        "the file has {size} bytes; at most {MAX_BYTES} bytes can be passed to pods"
    );
    let config = parse(&std::fs::read_to_string(file)?)?;
    Ok((config != CliConfig::default()).then_some(config))
}

fn parse(text: &str) -> Result<CliConfig> {
    ensure!(
        depth(text) <= MAX_DEPTH,
        "brackets are nested more than {MAX_DEPTH} levels deep"
    );
    // The message of the parser quotes the line, which may contain a token.
    let body: Body = text.parse().map_err(|error: hcl_edit::parser::Error| {
        anyhow!("invalid HCL in line {}", error.location().line())
    })?;
    let mut config = CliConfig::default();
    let mut has_installation = false;
    for structure in &body {
        match structure {
            Structure::Block(block) if block.has_ident("provider_installation") => {
                ensure!(
                    !has_installation,
                    "provider_installation: only one block is allowed"
                );
                has_installation = true;
                config.installation = installation(block).context("provider_installation")?;
            }
            Structure::Block(block) if block.has_ident("host") => {
                let (host, services) = host(block).context("host")?;
                ensure!(
                    config.hosts.insert(host.clone(), services).is_none(),
                    "host: two blocks for {host}"
                );
            }
            other => return Err(unsupported(name(other))),
        }
    }
    Ok(config)
}

/// Returns the maximum nesting depth of brackets. Also counts brackets in strings and comments.
fn depth(text: &str) -> usize {
    let (_, deepest) = text.bytes().fold((0_usize, 0), |(depth, deepest), byte| {
        let depth = match byte {
            b'{' | b'[' | b'(' => depth + 1,
            b'}' | b']' | b')' => depth.saturating_sub(1),
            _ => depth,
        };
        (depth, deepest.max(depth))
    });
    deepest
}

fn name(structure: &Structure) -> &str {
    match structure {
        Structure::Block(block) => block.ident.as_str(),
        Structure::Attribute(attribute) => attribute.key.as_str(),
    }
}

fn unsupported(name: &str) -> anyhow::Error {
    match REFUSED.iter().find(|(refused, _)| *refused == name) {
        Some((_, why)) => anyhow!("{name} is not allowed: {why}"),
        None => anyhow!(
            "unknown setting {name}; allowed are provider_installation with network_mirror and direct, and host \
             (docs/private-registries.md)"
        ),
    }
}

fn installation(block: &Block) -> Result<Vec<InstallationMethod>> {
    ensure!(block.labels.is_empty(), "the block must have no label");
    let methods = block.body.iter().map(|structure| match structure {
        Structure::Block(block) if block.has_ident("network_mirror") => {
            let method = method(block).context("network_mirror")?;
            ensure!(method.mirror.is_some(), "network_mirror: url is missing");
            Ok(method)
        }
        Structure::Block(block) if block.has_ident("direct") => {
            let method = method(block).context("direct")?;
            ensure!(method.mirror.is_none(), "direct: unknown argument url");
            Ok(method)
        }
        other => Err(unsupported(name(other))),
    });
    methods.collect()
}

fn method(block: &Block) -> Result<InstallationMethod> {
    ensure!(block.labels.is_empty(), "the block must have no label");
    let mut method = InstallationMethod::default();
    for structure in &block.body {
        let Structure::Attribute(argument) = structure else {
            bail!("unknown block {}", name(structure));
        };
        match argument.key.as_str() {
            "url" => method.mirror = Some(mirror(&argument.value).context("url")?),
            "include" => method.include = patterns(argument)?,
            "exclude" => method.exclude = patterns(argument)?,
            other => bail!("unknown argument {other}"),
        }
    }
    Ok(method)
}

/// Reads the URL of a network mirror. Adds a slash to its end: the engine resolves the paths of providers relative to the URL.
fn mirror(value: &Expression) -> Result<String> {
    let mut url = url(value)?;
    if !url.ends_with('/') {
        url.push('/');
    }
    Ok(url)
}

/// Reads a URL without credentials.
fn url(value: &Expression) -> Result<String> {
    let text = text(value)?;
    let url = Url::parse(text)
        .map_err(|_| anyhow!("expected a URL such as https://mirror.example.com/"))?;
    ensure!(
        url.scheme() == "https" && url.has_host(),
        "the URL must start with https://"
    );
    ensure!(
        url.username().is_empty() && url.password().is_none(),
        "the URL must contain no credentials: every pod could read them; set spec.terraformRegistries in the \
         resources instead"
    );
    ensure!(
        url.query().is_none() && url.fragment().is_none(),
        "the URL must have no query and no fragment"
    );
    Ok(url.to_string())
}

fn text(value: &Expression) -> Result<&str> {
    value
        .as_str()
        .context("expected a string without a template")
}

fn patterns(argument: &Attribute) -> Result<Vec<String>> {
    let name = argument.key.as_str();
    let list = argument
        .value
        .as_array()
        .with_context(|| format!("{name}: expected a list of strings"))?;
    let patterns = list.iter().map(|pattern| {
        let pattern = text(pattern)?;
        ensure!(
            is_pattern(pattern),
            "invalid pattern {pattern:?}: expected [HOST/]NAMESPACE/TYPE, with * for any part, for example \
             registry.example.com/*/*"
        );
        Ok(pattern.to_owned())
    });
    patterns
        .collect::<Result<_>>()
        .with_context(|| name.to_owned())
}

fn is_pattern(pattern: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    let is_part = |part: &str| part == "*" || (!part.is_empty() && part.bytes().all(plain));
    pattern.len() <= MAX_PATTERN
        && (2..=3).contains(&pattern.split('/').count())
        && pattern.split('/').all(is_part)
}

fn host(block: &Block) -> Result<(String, BTreeMap<String, String>)> {
    let [label] = block.labels.as_slice() else {
        bail!("the block must have one label, for example host \"registry.example.com\"");
    };
    let host = label.as_str();
    check_registry_host(host).map_err(|why| anyhow!("{host:?} {why}"))?;
    let is_ascii_form = host.split('.').any(|label| label.starts_with(ACE_PREFIX));
    ensure!(
        !is_ascii_form,
        "{host:?}: the engine does not support host blocks for the ASCII form of internationalized names"
    );
    let mut services = BTreeMap::new();
    for structure in &block.body {
        let argument = match structure {
            Structure::Attribute(argument) if argument.has_key("services") => argument,
            other => bail!("{host}: unknown setting {}", name(other)),
        };
        let object = argument
            .value
            .as_object()
            .with_context(|| format!("{host}: services: expected an object"))?;
        for (key, value) in object {
            let id = match key {
                ObjectKey::Ident(id) => Some(id.as_str()),
                ObjectKey::Expression(id) => id.as_str(),
            };
            let id = id.filter(|id| SERVICES.contains(id)).with_context(|| {
                format!("{host}: services: allowed are {}", SERVICES.join(" and "))
            })?;
            let url = url(value.expr()).with_context(|| format!("{host}: {id}"))?;
            services.insert(id.to_owned(), url);
        }
    }
    ensure!(!services.is_empty(), "{host}: services is missing");
    Ok((host.to_owned(), services))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPLETE: &str = r#"
# Providers of the company come from its mirror.
provider_installation {
  network_mirror {
    url     = "https://mirror.example.com:8443/providers"
    include = ["registry.terraform.io/*/*", "hashicorp/*"]
  }
  direct {
    exclude = ["registry.terraform.io/*/*"]
  }
}
host "registry.example.com:8443" {
  services = {
    "modules.v1" = "https://api.example.com/modules/"
  }
}
"#;

    #[test]
    fn installation_methods_and_hosts_are_read() {
        let method =
            |mirror: Option<&str>, include: &[&str], exclude: &[&str]| InstallationMethod {
                mirror: mirror.map(str::to_owned),
                include: include
                    .iter()
                    .map(|pattern| (*pattern).to_owned())
                    .collect(),
                exclude: exclude
                    .iter()
                    .map(|pattern| (*pattern).to_owned())
                    .collect(),
            };
        let config = parse(COMPLETE).unwrap();
        let url = "https://mirror.example.com:8443/providers/";
        let all = "registry.terraform.io/*/*";
        assert_eq!(
            config.installation,
            [
                method(Some(url), &[all, "hashicorp/*"], &[]),
                method(None, &[], &[all])
            ]
        );
        let services = &config.hosts["registry.example.com:8443"];
        assert_eq!(services["modules.v1"], "https://api.example.com/modules/");
        assert_eq!(parse("").unwrap(), CliConfig::default());
    }

    fn within(text: &str) -> String {
        format!("provider_installation {{\n{text}\n}}\n")
    }

    /// Asserts that each text is refused with its message, which contains no secret.
    fn refuses<const N: usize>(cases: [(String, &str); N]) {
        for (text, expected) in cases {
            let error = format!("{:#}", parse(&text).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("secret-1"), "{error}");
        }
    }

    #[test]
    fn refused_setting_is_named() {
        refuses([
            (
                "credentials \"a.test\" {\n  token = \"secret-1\"\n}\n".to_owned(),
                "credentials is not allowed: every pod could read",
            ),
            (
                "credentials_helper \"x\" {}\n".to_owned(),
                "credentials_helper is not allowed",
            ),
            (
                "plugin_cache_dir = \"/tmp\"\n".to_owned(),
                "plugin_cache_dir is not allowed",
            ),
            (
                within("dev_overrides {}"),
                "provider_installation: dev_overrides is not allowed",
            ),
            (
                within("filesystem_mirror {\npath = \"/a\"\n}"),
                "provider_installation: filesystem_mirror is not allowed",
            ),
            (within("oci_mirror {}"), "unknown setting oci_mirror"),
            (
                "disable_checkpoint = true\n".to_owned(),
                "unknown setting disable_checkpoint",
            ),
            (within("direct {}").repeat(2), "only one block is allowed"),
            (
                within("network_mirror {}"),
                "network_mirror: url is missing",
            ),
            (
                within("direct {\nurl = \"https://a.test/\"\n}"),
                "direct: unknown argument url",
            ),
            (
                "credentials \"a.test\" {\n  token = \"secret-1\" !\n}\n".to_owned(),
                "invalid HCL in line 2",
            ),
            (
                "provider_installation {".to_owned(),
                "invalid HCL in line 1",
            ),
            (
                format!("a = {}", "[".repeat(16 << 10)),
                "nested more than 8 levels",
            ),
        ]);
    }

    #[test]
    fn refused_url_pattern_and_host_are_named() {
        let mirror = |url: &str| within(&format!("network_mirror {{\nurl = \"{url}\"\n}}"));
        let service = |id: &str, url: &str| {
            format!("host \"a.test\" {{\nservices = {{ \"{id}\" = \"{url}\" }}\n}}\n")
        };
        refuses([
            (
                mirror("http://a.test/"),
                "url: the URL must start with https://",
            ),
            (
                mirror("https://me:secret-1@a.test/"),
                "url: the URL must contain no credentials",
            ),
            (
                mirror("https://a.test/?key=secret-1"),
                "url: the URL must have no query",
            ),
            (mirror("a.test"), "url: expected a URL"),
            (
                within("network_mirror {\nurl = \"https://${x}/\"\n}"),
                "url: expected a string without a template",
            ),
            (
                within("direct {\ninclude = [\"a\"]\n}"),
                "include: invalid pattern \"a\"",
            ),
            (
                within("direct {\ninclude = [\"a/b/c/d\"]\n}"),
                "include: invalid pattern",
            ),
            (
                within("direct {\nexclude = \"a/b\"\n}"),
                "exclude: expected a list of strings",
            ),
            (
                service("tfe.v2", "https://a.test/"),
                "host: a.test: services: allowed are modules.v1",
            ),
            (
                service("modules.v1", "http://a.test/"),
                "host: a.test: modules.v1: the URL must start with https://",
            ),
            (
                "host \"https://a.test\" {}\n".to_owned(),
                "host: \"https://a.test\" must be a host name",
            ),
            (
                "host \"xn--a.test\" {}\n".to_owned(),
                "ASCII form of internationalized names",
            ),
            (
                "host \"a.test\" {}\n".to_owned(),
                "host: a.test: services is missing",
            ),
            (
                service("modules.v1", "https://b.test/").repeat(2),
                "host: two blocks for a.test",
            ),
        ]);
    }

    #[test]
    fn file_of_cli_config_is_bounded_and_may_be_missing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.tfrc");
        assert_eq!(read(&file).unwrap(), None);
        let padded = |size: usize| format!("{COMPLETE}{}", " ".repeat(size - COMPLETE.len()));
        std::fs::write(&file, padded(MAX_BYTES)).unwrap();
        assert!(read(&file).unwrap().is_some());
        std::fs::write(&file, padded(MAX_BYTES + 1)).unwrap();
        let error = read(&file).unwrap_err().to_string();
        assert!(error.contains("at most 16384 bytes"), "{error}");
        std::fs::write(&file, "# nothing\n").unwrap();
        assert_eq!(read(&file).unwrap(), None);
    }
}
