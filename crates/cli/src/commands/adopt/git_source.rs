//! Repository of the module: `spec.gitRepo`, from the command line or from a `GitRepository` of Flux.

use serde_json::{Value, json};

use super::adoption::{Adoption, Options, Step};
use super::fields::{Note, Row, differs, has, lacks, notes};
use super::object::{is_true, text};
use super::values::{
    git_url, is_commit, is_duration, is_namespace, is_object_name, is_reference, is_ssh,
    relative_path,
};

/// Fields of `GitRepository` (source.toolkit.fluxcd.io, v1 and v1beta2).
pub(crate) const GIT_REPOSITORY: &[Row] = &[
    has(
        "url",
        "`gitRepo.url`, without the user name of an https URL",
    ),
    has(
        "ref.branch",
        "`gitRepo.branch`. Without a `ref`, Flux uses `master`, and so does the new resource",
    ),
    has("ref.tag", "`gitRepo.tag`"),
    has(
        "ref.commit",
        "`gitRepo.commit`. It takes precedence over the branch",
    ),
    lacks("ref.semver", "set `gitRepo.tag` to one tag"),
    differs(
        "ref.name",
        "`refs/heads/X` is `gitRepo.branch: X` and `refs/tags/X` is `gitRepo.tag: X`, both are set; other references have no equivalent",
    ),
    differs(
        "secretRef",
        "`gitRepo.sshKeySecret` with key `identity`, `gitRepo.githubApp` with `provider: github`, or `gitRepo.credentialsSecret`. The Secret must be in the namespace of the resource. Keys `bearerToken`, `caFile`, `certFile`, `keyFile` and `githubAppInstallationOwner` are not read: use `username`, `password`, `ca.crt` and `githubAppInstallationID`",
    ),
    has("interval", "`gitRepo.interval`"),
    has("recurseSubmodules", "`gitRepo.submodules`"),
    lacks("timeout", "a fetch has a fixed time limit of 5 minutes"),
    differs(
        "provider",
        "`github` is `gitRepo.githubApp`, which is set. Its tokens can only read the repository: add those of submodules and private modules to `githubApp.repositories`. With other providers, use a token in `gitRepo.credentialsSecret`",
    )
    .default_is("\"generic\""),
    lacks(
        "serviceAccountName",
        "use a token in `gitRepo.credentialsSecret`",
    ),
    lacks(
        "proxySecretRef",
        "the operator uses `HTTPS_PROXY` of its environment",
    ),
    lacks(
        "verify",
        "signatures of commits and tags are not verified: protect the branch, or set `gitRepo.commit`",
    ),
    differs(
        "ignore",
        "the context contains only the module, the local modules that it calls, and `gitRepo.include`",
    ),
    differs(
        "sparseCheckout",
        "the context contains only the module, the local modules that it calls, and `gitRepo.include`",
    ),
    lacks(
        "include",
        "files of other repositories: call them as modules with a git source",
    ),
    differs(
        "suspend",
        "`spec.suspend` of the resource also stops requests to the repository",
    )
    .default_is("false"),
    lacks("gitImplementation", "v1beta2 only; without effect in Flux"),
    lacks("accessFrom", "v1beta2 only; not implemented in Flux"),
];

/// Sets `gitRepo` from the options. Returns whether they contain a URL.
pub(crate) fn from_options(adoption: &mut Adoption, options: &Options) -> Result<bool, String> {
    if let Some(branch) = &options.branch {
        if !is_reference(branch) {
            return Err("--branch: not a valid branch name".to_owned());
        }
        adoption.set("gitRepo.branch", json!(branch));
    }
    if let Some(path) = &options.path {
        let why = "--path: must be a path in the repository, without `..`";
        let path = relative_path(path).ok_or(why)?;
        adoption.set("gitRepo.path", json!(path));
    }
    let Some(url) = &options.url else {
        return Ok(false);
    };
    let url = git_url(url).map_err(|error| format!("--url: {error}"))?;
    adoption.set("gitRepo.url", json!(url));
    Ok(true)
}

/// Sets `gitRepo.path` from the field `field` of the other object, unless an option sets it.
pub(crate) fn set_path(adoption: &mut Adoption, field: &str, path: Option<&str>) {
    if adoption.get("gitRepo.path").is_some() {
        return;
    }
    match path.map(relative_path) {
        None => {}
        Some(Some(path)) if path.is_empty() => {}
        Some(Some(path)) => adoption.set("gitRepo.path", json!(path)),
        Some(None) => {
            let text = "is not a path in the repository and is not copied: set gitRepo.path";
            adoption.note(Note::lacks(field, text));
        }
    }
}

/// Sets `gitRepo` from the `GitRepository` `source`.
///
/// # Errors
/// The URL cannot be used. The error does not contain the URL.
pub(crate) fn from_flux(
    adoption: &mut Adoption,
    source: &Value,
    options: &Options,
) -> Result<(), String> {
    let prefix = "GitRepository.spec.";
    let spec = source.get("spec").unwrap_or(&Value::Null);
    adoption
        .notes
        .append(&mut notes(GIT_REPOSITORY, prefix, spec));
    let theirs = text(spec, "/url").ok_or("the GitRepository has no spec.url")?;
    let url = git_url(theirs).map_err(|error| {
        format!("spec.url of the GitRepository {error}. Or set --url, which takes precedence")
    })?;
    adoption.set("gitRepo.url", json!(url));
    if options.branch.is_none() {
        set_reference(adoption, spec);
    }
    set_interval(adoption, spec);
    if is_true(spec, "/recurseSubmodules") {
        adoption.set("gitRepo.submodules", json!(true));
    }
    set_credentials(adoption, source, &url, options);
    Ok(())
}

fn set_reference(adoption: &mut Adoption, spec: &Value) {
    // Order of precedence of Flux: commit, name, semver, tag, branch.
    let name = text(spec, "/ref/name");
    let by_name = name.and_then(|name| {
        name.strip_prefix("refs/heads/")
            .map(|rest| ("branch", rest))
            .or_else(|| Some(("tag", name.strip_prefix("refs/tags/")?)))
    });
    let field =
        |field: &'static str| text(spec, &format!("/ref/{field}")).map(|text| (field, text));
    let reference = field("commit")
        .or(by_name)
        .or_else(|| field("tag"))
        .or_else(|| field("branch"));
    let has_other = name.is_some() || text(spec, "/ref/semver").is_some();
    let (field, value) = match reference {
        Some(reference) => reference,
        None if has_other => return,
        None => ("branch", "master"),
    };
    let is_valid = match field {
        "commit" => is_commit(value),
        _ => is_reference(value),
    };
    if is_valid {
        adoption.set(&format!("gitRepo.{field}"), json!(value));
    } else {
        let path = format!("GitRepository.spec.ref ({field})");
        let text = "is not valid and is not copied: the default branch applies";
        adoption.note(Note::lacks(path, text));
    }
}

fn set_interval(adoption: &mut Adoption, spec: &Value) {
    match text(spec, "/interval") {
        None => {}
        Some(interval) if is_duration(interval) => {
            adoption.set("gitRepo.interval", json!(interval));
        }
        Some(_) => {
            let text = "is not a duration from 1s to 8760h: the default of 1m applies";
            adoption.note(Note::differs("GitRepository.spec.interval", text));
        }
    }
}

fn set_credentials(adoption: &mut Adoption, source: &Value, url: &str, options: &Options) {
    let Some(secret) = text(source, "/spec/secretRef/name") else {
        return;
    };
    let namespace = text(source, "/metadata/namespace").unwrap_or(&options.namespace);
    if !is_object_name(secret) || !is_namespace(namespace) {
        let text = "is not the name of an object and is not copied";
        adoption.note(Note::lacks("GitRepository.spec.secretRef", text));
        return;
    }
    let keys = if is_ssh(url) {
        let key = json!({"name": secret, "key": "identity"});
        adoption.set("gitRepo.sshKeySecret", key);
        "identity and known_hosts"
    } else if text(source, "/spec/provider") == Some("github") {
        adoption.set("gitRepo.githubApp", json!({"secretRef": {"name": secret}}));
        "githubAppID, githubAppInstallationID and githubAppPrivateKey"
    } else {
        adoption.set("gitRepo.credentialsSecret", json!({"name": secret}));
        "username and password"
    };
    if namespace != options.namespace {
        let text = format!(
            "Copy Secret {namespace}/{secret} with keys {keys} to namespace {}: a resource reads \
             Secrets of its own namespace only",
            options.namespace
        );
        adoption.steps.push(Step::new(text, []));
    }
}

#[cfg(test)]
mod tests {
    use super::super::fields::table;
    use super::*;
    use rstest::rstest;

    fn options() -> Options {
        Options {
            namespace: "team".into(),
            ..Options::default()
        }
    }

    fn source(spec: &Value) -> Value {
        let mut source = json!({
            "metadata": {"namespace": "flux-system"},
            "spec": {"url": "https://git.test/a/b", "interval": "1m0s"},
        });
        for (name, value) in spec.as_object().unwrap() {
            source["spec"][name] = value.clone();
        }
        source
    }

    fn mapped(spec: &Value) -> (Value, Adoption) {
        let mut adoption = Adoption::new(&options());
        from_flux(&mut adoption, &source(spec), &options()).unwrap();
        (adoption.get("gitRepo").unwrap().clone(), adoption)
    }

    #[test]
    fn documentation_has_every_field_of_a_git_repository() {
        table::assert_documented("migration-tofu-controller.md", GIT_REPOSITORY);
    }

    #[rstest]
    #[case(json!({}), json!({"branch": "master"}))]
    #[case(json!({"ref": {"branch": "main"}}), json!({"branch": "main"}))]
    #[case(json!({"ref": {"branch": "main", "tag": "v1"}}), json!({"tag": "v1"}))]
    #[case(json!({"ref": {"name": "refs/heads/x"}}), json!({"branch": "x"}))]
    #[case(json!({"ref": {"name": "refs/pull/1/head"}}), json!({}))]
    #[case(json!({"ref": {"semver": "1.x"}}), json!({}))]
    #[case(json!({"ref": {"branch": "--upload-pack=x"}}), json!({}))]
    #[case(json!({"ref": {"branch": "main", "commit": "a".repeat(40)}}), json!({"commit": "a".repeat(40)}))]
    fn revision_follows_the_precedence_of_flux(#[case] spec: Value, #[case] wanted: Value) {
        let (repository, _) = mapped(&spec);
        for field in ["branch", "tag", "commit"] {
            assert_eq!(repository.get(field), wanted.get(field), "{field}");
        }
    }

    #[test]
    fn credentials_of_another_namespace_must_be_copied() {
        let (repository, adoption) = mapped(&json!({"secretRef": {"name": "git"}}));
        assert_eq!(repository["credentialsSecret"], json!({"name": "git"}));
        let step = &adoption.steps[0].text;
        assert!(step.contains("flux-system/git"), "{step}");
        let ssh = json!({"url": "ssh://git@git.test/a", "secretRef": {"name": "git"}});
        let (repository, _) = mapped(&ssh);
        let key = json!({"name": "git", "key": "identity"});
        assert_eq!(repository["sshKeySecret"], key);
        let app = json!({"provider": "github", "secretRef": {"name": "app"}});
        let (repository, adoption) = mapped(&app);
        let wanted = json!({"secretRef": {"name": "app"}});
        assert_eq!(repository["githubApp"], wanted);
        assert_eq!(repository.get("credentialsSecret"), None);
        let step = &adoption.steps[0].text;
        assert!(step.contains("githubAppPrivateKey"), "{step}");
    }

    #[test]
    fn unknown_and_lacking_fields_are_reported() {
        let (_, adoption) =
            mapped(&json!({"verify": {"mode": "HEAD"}, "newer": 1, "interval": "5d"}));
        let paths: Vec<&str> = adoption.notes.iter().map(|note| &*note.path).collect();
        for path in ["verify", "newer", "interval"] {
            let path = format!("GitRepository.spec.{path}");
            assert!(paths.contains(&&*path), "{path}: {paths:?}");
        }
    }

    #[test]
    fn password_in_a_url_is_not_printed() {
        let source = source(&json!({"url": "https://me:x3-secret@git.test/a"}));
        let mut adoption = Adoption::new(&options());
        let error = from_flux(&mut adoption, &source, &options()).unwrap_err();
        assert!(error.contains("password"), "{error}");
        assert!(!error.contains("x3-secret"), "{error}");
    }

    #[test]
    fn options_take_precedence() {
        let options = Options {
            url: Some("https://git.test/c".into()),
            branch: Some("x".into()),
            path: Some("./a/".into()),
            ..options()
        };
        let mut adoption = Adoption::new(&options);
        assert_eq!(from_options(&mut adoption, &options), Ok(true));
        set_path(&mut adoption, "path", Some("b"));
        let wanted = json!({"url": "https://git.test/c", "branch": "x", "path": "a"});
        assert_eq!(adoption.get("gitRepo"), Some(&wanted));
        for (options, flag) in [
            (
                Options {
                    branch: Some("-x".into()),
                    ..options.clone()
                },
                "--branch",
            ),
            (
                Options {
                    path: Some("../x".into()),
                    ..options.clone()
                },
                "--path",
            ),
            (
                Options {
                    url: Some("x".into()),
                    ..options.clone()
                },
                "--url",
            ),
        ] {
            let error = from_options(&mut adoption, &options).unwrap_err();
            assert!(error.starts_with(flag), "{error}");
        }
    }
}
