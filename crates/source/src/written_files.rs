//! Files of sources that are part of a resource: the files in `spec.source.inline`, and the root module that calls the module in
//! `spec.source.module`. Performs no I/O. CEL rules of the CRD refuse invalid values as well, but resources may be older than the rules.

use std::collections::BTreeSet;

use alustan_api::{InlineModule, MAX_INLINE_BYTES, MAX_INLINE_FILES, RemoteModule};
use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::{
    error::Error,
    files::{SourceFile, SourceFiles},
};

/// Name of the file with the root module that calls a remote module.
const ROOT_MODULE: &str = "main.tf.json";
/// Name of the `module` block.
const MODULE: &str = "main";
/// Maximum size of a file name, in bytes.
const MAX_NAME: usize = 128;
/// Maximum size of `source` and of `version`, in bytes.
const MAX_SOURCE: usize = 512;
const MAX_VERSION: usize = 128;
/// Maximum number of outputs.
const MAX_OUTPUTS: usize = 100;

const LOCK_FILE: &str = ".terraform.lock.hcl";
/// Allowed suffixes of file names, without the dot.
const SUFFIXES: [&str; 15] = [
    "tf", "tofu", "tfvars", "tftpl", "tpl", "tmpl", "hcl", "json", "yaml", "yml", "txt", "sh",
    "py", "pem", "rego",
];

/// Arguments of a `module` block that are not variables of the module. The engines refuse variables with these names:
/// <https://developer.hashicorp.com/terraform/language/block/variable>.
const RESERVED: [&str; 8] = [
    "source",
    "version",
    "providers",
    "count",
    "for_each",
    "lifecycle",
    "depends_on",
    "locals",
];

/// Hosts whose repositories have a short form that is not a module of a registry: `github.com/owner/repository`.
const GIT_HOSTS: [&str; 2] = ["github.com", "bitbucket.org"];

/// Returns the files of `module`.
///
/// # Errors
/// [`Error::InvalidSource`] if a name is not allowed, or if number or size of the files exceeds its limit.
pub fn inline_files(module: &InlineModule) -> Result<SourceFiles, Error> {
    let invalid = |why: String| Err(invalid("spec.source.inline.files", why));
    let count = module.files.len();
    if count == 0 || count > MAX_INLINE_FILES {
        return invalid(format!(
            "{count} files; there must be 1 to {MAX_INLINE_FILES} files"
        ));
    }
    let bytes: usize = module.files.values().map(String::len).sum();
    if bytes > MAX_INLINE_BYTES {
        return invalid(format!(
            "the files have {bytes} bytes, more than the limit of {MAX_INLINE_BYTES}; put them \
             into a git repository or an OCI artifact"
        ));
    }
    if let Some(name) = module.files.keys().find(|name| !is_file_name(name)) {
        let name: String = name.chars().take(MAX_NAME).collect();
        return invalid(format!(
            "`{}` is not an allowed name: use letters, digits, `_`, `.` and `-`, no folder, and one \
             of the suffixes .{}",
            name.escape_debug(),
            SUFFIXES.join(", .")
        ));
    }
    let files = module.files.iter();
    Ok(files
        .map(|(name, text)| (name.clone(), text_file(text.clone())))
        .collect())
}

fn is_file_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let has_suffix = name
        .rsplit_once('.')
        .is_some_and(|(_, suffix)| SUFFIXES.contains(&suffix));
    let is_plain = name.len() <= MAX_NAME
        && !name.starts_with(['.', '-'])
        && !name.contains(".tfstate")
        && name.chars().all(is_allowed);
    name == LOCK_FILE || is_plain && has_suffix
}

/// Returns the root module that calls `module`. It has a variable for each of `variables` that can be a variable, and passes their values to
/// the module.
///
/// # Errors
/// [`Error::InvalidSource`] if source, version or an output is invalid.
pub fn root_module_files(
    module: &RemoteModule,
    variables: &BTreeSet<String>,
) -> Result<SourceFiles, Error> {
    check_source(module)?;
    let variables: Vec<&String> = variables.iter().filter(|name| is_variable(name)).collect();
    let mut call = Map::new();
    call.insert("source".to_owned(), json!(module.source));
    if let Some(version) = &module.version {
        call.insert("version".to_owned(), json!(version));
    }
    for name in &variables {
        call.insert((*name).clone(), json!(format!("${{var.{name}}}")));
    }
    let mut root = json!({ "module": { MODULE: call } });
    let declarations: Map<String, Value> = variables
        .iter()
        .map(|name| ((*name).clone(), json!({})))
        .collect();
    let outputs: Map<String, Value> = module
        .outputs
        .iter()
        .map(|output| {
            let name = &output.name;
            let value = format!("${{module.{MODULE}.{name}}}");
            let body = json!({ "value": value, "sensitive": output.sensitive });
            (name.clone(), body)
        })
        .collect();
    for (kind, blocks) in [("variable", declarations), ("output", outputs)] {
        if let (false, Some(root)) = (blocks.is_empty(), root.as_object_mut()) {
            root.insert(kind.to_owned(), blocks.into());
        }
    }
    let text = format!("{root:#}\n");
    Ok(SourceFiles::from([(
        ROOT_MODULE.to_owned(),
        text_file(text),
    )]))
}

fn check_source(module: &RemoteModule) -> Result<(), Error> {
    let RemoteModule {
        source,
        version,
        outputs,
    } = module;
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._:/@?&=+~%-".contains(c);
    let is_path = |text: &str| text.starts_with(['.', '/']) || text.starts_with("file:");
    let is_remote = source.len() <= MAX_SOURCE
        && source.starts_with(|c: char| c.is_ascii_alphanumeric())
        && source.chars().all(is_allowed)
        && !source.split("::").any(is_path);
    if !is_remote {
        return Err(invalid(
            "spec.source.module.source",
            "must be a module of a registry (NAMESPACE/NAME/PROVIDER) or a remote source, such as \
             git::https://HOST/REPOSITORY, not a path"
                .to_owned(),
        ));
    }
    if is_registry_module(source) != version.is_some() {
        return Err(invalid(
            "spec.source.module.version",
            "is required for a module of a registry (NAMESPACE/NAME/PROVIDER), and not allowed for \
             other sources: select their version in source, for example with ?ref=v1.2.0"
                .to_owned(),
        ));
    }
    let is_version = |c: char| c.is_ascii_alphanumeric() || ".,<>=!~ +-".contains(c);
    if let Some(version) = version
        && (version.is_empty() || version.len() > MAX_VERSION || !version.chars().all(is_version))
    {
        return Err(invalid(
            "spec.source.module.version",
            "must be a version or a version constraint, such as 5.8.1 or ~> 5.8".to_owned(),
        ));
    }
    let is_output = |name: &str| name.len() <= MAX_NAME && is_identifier(name);
    if outputs.len() > MAX_OUTPUTS || !outputs.iter().all(|output| is_output(&output.name)) {
        return Err(invalid(
            "spec.source.module.outputs",
            format!("must be at most {MAX_OUTPUTS} names of outputs"),
        ));
    }
    Ok(())
}

/// Whether `source` is the address of a module in a registry: `[HOST/]NAMESPACE/NAME/PROVIDER[//FOLDER]`. See
/// <https://developer.hashicorp.com/terraform/language/modules/configuration#terraform-registry>.
fn is_registry_module(source: &str) -> bool {
    let (address, folder) = source.split_once("//").unwrap_or((source, ""));
    let parts: Vec<&str> = address.split('/').collect();
    let (host, name) = match parts.as_slice() {
        [host, name @ ..] if parts.len() == 4 => (Some(*host), name),
        name => (None, name),
    };
    let is_name = |part: &&str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
    };
    let is_provider = |part: &str| {
        !part.is_empty()
            && part
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    };
    let is_host = |host: &str| {
        let (name, port) = host.split_once(':').unwrap_or((host, "0"));
        let label = |label: &str| {
            !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        };
        !port.is_empty()
            && port.chars().all(|c| c.is_ascii_digit())
            && name.split('.').all(label)
            && !GIT_HOSTS.contains(&name)
    };
    let [namespace, module, provider] = name else {
        return false;
    };
    [namespace, module].into_iter().all(is_name)
        && is_provider(provider)
        && host.is_none_or(is_host)
        && !folder.contains('?')
}

/// Whether a module can have the variable `name`.
fn is_variable(name: &str) -> bool {
    is_identifier(name) && !RESERVED.contains(&name)
}

fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
}

fn text_file(text: String) -> SourceFile {
    SourceFile {
        executable: false,
        content: Bytes::from(text),
    }
}

fn invalid(field: &'static str, why: String) -> Error {
    Error::InvalidSource { field, why }
}

#[cfg(test)]
mod tests;
