//! Environment variables of the engine and of scripts with the values of variables.

use serde_json::Value;

use super::variables::Values;
use crate::paths::Vars;

/// Maximum length of a value in an environment variable, in bytes. Linux accepts 128 KiB including the name.
pub(super) const MAX_VALUE_BYTES: usize = 127 * 1024;

/// Names of environment variables that shells, interpreters, loaders and libraries read. Variables of the module with these names are set
/// only with the prefix `TF_VAR_`. Names that configure providers, such as `KUBECONFIG` and `AWS_CONFIG_FILE`, are not reserved: modules
/// may set them.
const RESERVED: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "IFS",
    "ENV",
    "PWD",
    "OLDPWD",
    "CDPATH",
    "TMPDIR",
    "TMP",
    "TEMP",
    "TERM",
    "LANG",
    "LANGUAGE",
    "HOSTNAME",
    "UID",
    "EUID",
    "PS1",
    "PS2",
    "PS4",
    "PROMPT_COMMAND",
    "SHELLOPTS",
    "BASHOPTS",
    "GLOBIGNORE",
    "POSIXLY_CORRECT",
    "EDITOR",
    "VISUAL",
    "PAGER",
    "BROWSER",
    "NLSPATH",
    "GCONV_PATH",
    "GETCONF_DIR",
    "GLIBC_TUNABLES",
    "HOSTALIASES",
    "LOCALDOMAIN",
    "RES_OPTIONS",
    "RESOLV_HOST_CONF",
    "ZDOTDIR",
    "INPUTRC",
    "AWKPATH",
    "AWKLIBPATH",
    "LESSOPEN",
    "LESSCLOSE",
    "CURL_HOME",
    "WGETRC",
    "NETRC",
    "GEM_HOME",
    "GEM_PATH",
    "_JAVA_OPTIONS",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "FTP_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "ftp_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "CHECKPOINT_DISABLE",
    "CLASSPATH",
];

/// Prefixes of environment variable names. A name with one of the prefixes is reserved like the names in [`RESERVED`].
const RESERVED_PREFIXES: &[&str] = &[
    "LD_",
    "DYLD_",
    "BASH_",
    "GIT_",
    "SSH_",
    "TF_",
    "ALUSTAN_",
    "KUBERNETES_",
    "LC_",
    "MALLOC_",
    "PYTHON",
    "PERL",
    "RUBY",
    "NODE_",
    "NPM_CONFIG_",
    "npm_config_",
    "JAVA_",
    "JDK_",
    "LUA_",
    "OPENSSL_",
    "XDG_",
    "GODEBUG",
    "GOGC",
    "GOMAXPROCS",
    "GOTRACE",
];

/// Returns environment variables with the values: `TF_VAR_NAME`, and `NAME` if it is not reserved.
pub fn environment(values: &Values) -> Vars {
    let mut environment = Vars::new();
    for (name, value) in values {
        let text = text_of(value);
        if may_stand_bare(name) {
            environment.insert(name.clone(), text.clone());
        }
        if is_environment_name(name) {
            environment.insert(format!("TF_VAR_{name}"), text);
        }
    }
    // Omits values that are too long for an environment variable or contain NUL. Only the tfvars file can pass these values.
    environment.retain(|_, text| fits_environment(text));
    environment
}

/// Returns the variables in `environment` that can be set in the environment of a process, without the variables of the runner (`ALUSTAN_…`). The pin
/// contains `environment`, because a destroy may need variables from Secrets that no longer exist.
pub fn given(environment: &Vars) -> Vars {
    let fits = |name: &str, text: &str| {
        let name = is_environment_name(name) && !name.starts_with("ALUSTAN_");
        name && fits_environment(text)
    };
    environment
        .iter()
        .filter(|(name, text)| fits(name, text))
        .map(|(name, text)| (name.clone(), text.clone()))
        .collect()
}

/// Whether `text` can be the value of an environment variable.
pub(super) fn fits_environment(text: &str) -> bool {
    text.len() <= MAX_VALUE_BYTES && !text.contains('\0')
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn is_environment_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// Whether the environment variable `name` may be set without the prefix `TF_VAR_`: it is a shell identifier and not reserved.
fn may_stand_bare(name: &str) -> bool {
    is_identifier(name)
        && !RESERVED.contains(&name)
        && !RESERVED_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn values(value: Value) -> Values {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn values_reach_the_environment_as_text_or_json() {
        let given = values(
            json!({"name": "x y", "count": 3, "tags": {"a": ["b"]}, "PATH": "/evil", "a-b": "c"}),
        );
        let wanted = [
            ("TF_VAR_name", "x y"),
            ("name", "x y"),
            ("TF_VAR_count", "3"),
            ("count", "3"),
            ("TF_VAR_tags", r#"{"a":["b"]}"#),
            ("tags", r#"{"a":["b"]}"#),
            ("TF_VAR_PATH", "/evil"),
            ("TF_VAR_a-b", "c"),
        ];
        let wanted = wanted.map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(environment(&given), Vars::from(wanted));
    }

    #[test]
    fn values_that_do_not_fit_the_environment_are_omitted() {
        let given = values(json!({"long": "x".repeat(200_000), "zero": "a\u{0}b", "fine": "x"}));
        let names: Vec<String> = environment(&given).into_keys().collect();
        assert_eq!(names, ["TF_VAR_fine", "fine"]);
    }

    #[test]
    fn given_environment_excludes_runner_and_invalid_variables() {
        let all = [
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("tls.crt", "t"),
            ("TF_VAR_a", "v"),
            ("ALUSTAN_WORK_DIR", "/elsewhere"),
            ("a=b", "x"),
            ("", "x"),
            ("ZERO", "a\0b"),
        ];
        let all = all.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let names: Vec<String> = given(&Vars::from(all)).into_keys().collect();
        assert_eq!(names, ["AWS_SECRET_ACCESS_KEY", "TF_VAR_a", "tls.crt"]);
    }

    #[rstest]
    #[case("region", true)]
    #[case("AWS_REGION", true)]
    #[case("_x1", true)]
    #[case("1x", false)]
    #[case("a-b", false)]
    #[case("a.b", false)]
    #[case("", false)]
    #[case("PATH", false)]
    #[case("path", true)]
    #[case("LD_PRELOAD", false)]
    #[case("BASH_ENV", false)]
    #[case("GIT_SSH_COMMAND", false)]
    #[case("TF_LOG", false)]
    #[case("https_proxy", false)]
    #[case("KUBERNETES_SERVICE_HOST", false)]
    #[case("ENV", false)]
    #[case("PYTHONPATH", false)]
    #[case("NODE_OPTIONS", false)]
    #[case("npm_config_script_shell", false)]
    #[case("PERL5OPT", false)]
    #[case("RUBYOPT", false)]
    #[case("JAVA_TOOL_OPTIONS", false)]
    #[case("_JAVA_OPTIONS", false)]
    #[case("LUA_INIT", false)]
    #[case("OPENSSL_CONF", false)]
    #[case("XDG_CONFIG_HOME", false)]
    #[case("CURL_HOME", false)]
    #[case("GLIBC_TUNABLES", false)]
    #[case("KUBECONFIG", true)]
    #[case("AWS_CONFIG_FILE", true)]
    fn only_harmless_names_are_exported_without_prefix(#[case] name: &str, #[case] bare: bool) {
        assert_eq!(may_stand_bare(name), bare);
    }
}
