//! Secrets and `ConfigMap`s that the spec refers to: read from the API server, or reused if a reconcile read them in the last seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use alustan_api::names::{self, DOCKER_CONFIG_KEY};
use alustan_api::report::Failure;
use alustan_api::run::ScriptTexts;
use alustan_api::{GitHubApp, KeyRef, Reason, Script, Terraform, TokenRef, parse_registry_token};
use alustan_core::dns_names::is_subdomain;
use alustan_core::model::pod_options;
use alustan_core::model::terraform_registries::token_key;
use alustan_core::objects::prepare::{HTTPS_FILES, SSH_FILES};
use alustan_core::observed::{Incomplete, InputsSeen};
use alustan_registry::DockerConfig;
use alustan_source::{Credentials, HttpsCredentials, SecretBytes, SecretString};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::call::call;
use crate::error::{Error, ReadResult};
use crate::github_app::{self, GitHubAppParts, REQUIRED_KEYS};
use crate::observe::observer::{Observer, QueryCredentials};
use crate::recent_reads::{RecentReads, Values};
use crate::remote::git_refs::{AppLogin, Login};
use crate::resource::Ref;

/// Maximum size of a script, in bytes. The run record contains all scripts, and a Secret has at most 1 MiB.
const MAX_SCRIPT_BYTES: usize = 64 << 10;

/// Key of Secrets of the older type `kubernetes.io/dockercfg`.
const DOCKERCFG: &str = ".dockercfg";

/// Inputs that the spec refers to, or the failure of the first one that is missing or invalid.
pub(super) struct Inputs {
    /// Inputs of runs. [`Incomplete`]: the inputs that exist, and the failure of the first missing one.
    pub(super) seen: Result<InputsSeen, Box<Incomplete>>,
    pub(super) credentials: QueryCredentials,
}

/// Reads all inputs that the resource of the `observer` refers to. `pinned` is the docker configuration in the pin, which replaces a missing or
/// invalid registry Secret.
///
/// # Errors
/// If a call of the API server fails. Missing and invalid inputs are part of the result.
pub(super) async fn read(observer: &Observer<'_>, pinned: Option<&str>) -> Result<Inputs, Error> {
    let Observer { ctx, tf, .. } = *observer;
    let reader = Reader {
        observer,
        namespace: tf.namespace().unwrap_or_default(),
    };
    let git = reader.git(tf).await?;
    let registry = reader.registry(tf).await?;
    let artifact = reader.artifact(tf).await?;
    let (mut inputs, missing) = reader.seen(tf, &registry).await?;
    let tokens = reader.registry_tokens(tf).await?;
    let files = git
        .as_ref()
        .ok()
        .filter(|_| ctx.settings.builds_elsewhere(tf));
    inputs.git = files.map(|git| git.files.clone()).unwrap_or_default();
    let git = git.map(|git| git.login);
    let missing = [
        git.as_ref().err(),
        registry.as_ref().err(),
        tokens.as_ref().err(),
        artifact.as_ref().err(),
        missing.as_ref(),
    ];
    inputs.registry_tokens = tokens.as_ref().cloned().unwrap_or_default();
    let seen = match missing.into_iter().flatten().next().cloned() {
        Some(failure) => Err(Box::new(Incomplete {
            failure,
            found: inputs,
        })),
        None => Ok(inputs),
    };
    let docker = registry.map(|registry| registry.map(|registry| registry.config));
    let pinned_config = || DockerConfig::parse(pinned?.as_bytes()).ok();
    let docker = docker.or_else(|failure| pinned_config().map(Some).ok_or(failure));
    let credentials = QueryCredentials {
        git,
        docker,
        artifact,
    };
    Ok(Inputs { seen, credentials })
}

/// Git credentials from the Secret that the spec refers to.
#[derive(Default)]
struct GitSecrets {
    login: Login,
    /// Git credentials as files, for builds.
    files: BTreeMap<String, Vec<u8>>,
}

impl GitSecrets {
    fn copy_files(&mut self, files: &[&str], data: &BTreeMap<String, ByteString>) {
        let entries = files.iter().filter_map(|file| data.get_key_value(*file));
        let entries = entries.map(|(file, text)| (file.clone(), text.0.clone()));
        self.files.extend(entries);
    }
}

/// Secret with registry credentials.
struct RegistrySecret {
    key: String,
    config: DockerConfig,
    /// Whether the kubelet and the builder can use the Secret without conversion.
    pulls: bool,
}

impl RegistrySecret {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.config.to_dockerconfigjson()).into_owned()
    }
}

/// Failure of the first missing input.
#[derive(Default)]
struct Missing(Option<Failure>);

impl Missing {
    fn take_value<T>(&mut self, result: Result<T, Failure>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(failure) => {
                self.0.get_or_insert(failure);
                None
            }
        }
    }
}

/// Reads Secrets and `ConfigMap`s of a namespace.
pub(super) struct Reader<'a> {
    pub(super) observer: &'a Observer<'a>,
    pub(super) namespace: String,
}

impl Reader<'_> {
    pub(super) async fn secret(&self, field: &str, name: &str) -> ReadResult<Secret> {
        let secret = self.find(&self.observer.ctx.inputs.secrets, name).await?;
        Ok(secret.ok_or_else(|| self.missing(field, "Secret", name)))
    }

    pub(super) async fn config_map(&self, field: &str, name: &str) -> ReadResult<ConfigMap> {
        let config_map = self
            .find(&self.observer.ctx.inputs.config_maps, name)
            .await?;
        Ok(config_map.ok_or_else(|| self.missing(field, "ConfigMap", name)))
    }

    /// Returns the values of the object `name`, without its metadata: reused from `recent`, or read from the API server.
    async fn find<K>(&self, recent: &RecentReads<Option<K>>, name: &str) -> Result<Option<K>, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Values + DeserializeOwned + Clone + Debug + Send + 'static,
    {
        // The name is part of the URL. The schema does not allow such a name; resources of earlier versions may have it.
        if !is_subdomain(name) {
            return Ok(None);
        }
        let key = Ref::new(name).within(&self.namespace);
        let request = || {
            let api: Api<K> = Api::namespaced(self.observer.ctx.client.clone(), &self.namespace);
            let name = name.to_owned();
            async move {
                let operation = format!("read {} {name}", K::kind(&()));
                let mut object = call(&operation, api.get_opt(&name)).await?;
                if let Some(object) = &mut object {
                    *object.meta_mut() = ObjectMeta::default();
                }
                Ok(object)
            }
        };
        self.observer.read(recent, &key, request).await
    }

    fn missing(&self, field: &str, kind: &str, name: &str) -> Failure {
        let reason = match kind {
            "Secret" => Reason::SecretNotFound,
            _ => Reason::ConfigMapNotFound,
        };
        Failure::transient(
            reason,
            format!(
                "{field}: {kind} {name} does not exist in namespace {}; reconciliation resumes \
                 automatically once it exists",
                self.namespace
            ),
        )
    }

    pub(super) fn missing_key(&self, field: &str, kind: &str, name: &str, key: &str) -> Failure {
        let reason = match kind {
            "Secret" => Reason::SecretKeyNotFound,
            _ => Reason::ConfigMapKeyNotFound,
        };
        Failure::transient(
            reason,
            format!(
                "{field}: {kind} {name} in namespace {} has no key {key}; reconciliation resumes \
                 automatically once the key exists",
                self.namespace
            ),
        )
    }

    async fn git(&self, tf: &Terraform) -> ReadResult<GitSecrets> {
        let mut secrets = GitSecrets::default();
        let Some(repo) = &tf.spec.git_repo else {
            return Ok(Ok(secrets));
        };
        let mut credentials = Credentials::default();
        let mut authorities: Vec<String> = self
            .observer
            .ctx
            .settings
            .ca_bundle
            .iter()
            .cloned()
            .collect();
        authorities.extend(repo.ca_bundle.clone());
        if let Some(reference) = &repo.ssh_key_secret {
            let field = "spec.gitRepo.sshKeySecret";
            let data = value_or_return!(self.secret(field, &reference.name).await?)
                .data
                .unwrap_or_default();
            let Some(key) = data.get(&reference.key) else {
                return Ok(Err(self.missing_key(
                    field,
                    "Secret",
                    &reference.name,
                    &reference.key,
                )));
            };
            let [ssh_key, known_hosts] = SSH_FILES;
            secrets.files.insert(ssh_key.to_owned(), key.0.clone());
            secrets.copy_files(&[known_hosts], &data);
            credentials.ssh_key = Some(SecretBytes::new(key.0.clone()));
            credentials.known_hosts = data.get("known_hosts").map(text);
        }
        if let Some(reference) = &repo.credentials_secret {
            let field = "spec.gitRepo.credentialsSecret";
            let data = value_or_return!(self.secret(field, &reference.name).await?)
                .data
                .unwrap_or_default();
            let user = data.get("username").map_or_else(|| "git".to_owned(), text);
            let password = data.get("password");
            if password.is_none() && !data.contains_key("ca.crt") {
                return Ok(Err(self.missing_key(
                    field,
                    "Secret",
                    &reference.name,
                    "password",
                )));
            }
            secrets.copy_files(&HTTPS_FILES, &data);
            if let Some(password) = password {
                credentials.https = Some(HttpsCredentials {
                    username: SecretString::new(user),
                    password: SecretString::new(text(password)),
                });
            }
            authorities.extend(data.get("ca.crt").map(text));
        }
        let mut app_data = None;
        if let Some(GitHubApp { secret_ref, .. }) = &repo.github_app {
            let (field, name) = ("spec.gitRepo.githubApp.secretRef", &secret_ref.name);
            let data = value_or_return!(self.secret(field, name).await?)
                .data
                .unwrap_or_default();
            if let Some(key) = REQUIRED_KEYS.iter().find(|key| !data.contains_key(**key)) {
                return Ok(Err(self.missing_key(field, "Secret", name, key)));
            }
            let [.., authority] = HTTPS_FILES;
            secrets.copy_files(&[authority], &data);
            authorities.extend(data.get(authority).map(text));
            app_data = Some(data);
        }
        credentials.ca_bundle = (!authorities.is_empty()).then(|| authorities.join("\n"));
        if let Some((app, data)) = repo.github_app.as_ref().zip(app_data) {
            let app = value_or_return!(github_app::GitHubApp::new(&GitHubAppParts {
                url: &repo.url,
                repositories: &app.repositories,
                secret: &app.secret_ref.name,
                data: &data,
                ca_bundle: credentials.ca_bundle.as_deref(),
            }));
            credentials.identity = Some(SecretBytes::new(app.identity()));
            secrets.login.app = Some(AppLogin {
                app: Arc::new(app),
                tokens: self.observer.ctx.app_tokens.clone(),
            });
        }
        secrets.login.credentials = credentials;
        Ok(Ok(secrets))
    }

    async fn registry(&self, tf: &Terraform) -> ReadResult<Option<RegistrySecret>> {
        let Some(reference) = &tf.spec.container_registry.secret_ref else {
            return Ok(Ok(None));
        };
        let field = "spec.containerRegistry.secretRef";
        Ok(self.registry_secret(field, reference).await?.map(Some))
    }

    /// Returns the docker configuration in `spec.source.oci.secretRef`.
    async fn artifact(&self, tf: &Terraform) -> ReadResult<Option<DockerConfig>> {
        let artifact = tf
            .spec
            .source
            .as_ref()
            .and_then(|source| source.oci.as_ref());
        let Some(reference) = artifact.and_then(|artifact| artifact.secret_ref.as_ref()) else {
            return Ok(Ok(None));
        };
        let field = "spec.source.oci.secretRef";
        let secret = self.registry_secret(field, reference).await?;
        Ok(secret.map(|secret| Some(secret.config)))
    }

    async fn registry_secret(&self, field: &str, reference: &KeyRef) -> ReadResult<RegistrySecret> {
        let secret = value_or_return!(self.secret(field, &reference.name).await?);
        let data = secret.data.unwrap_or_default();
        let key = [reference.key.as_str(), DOCKER_CONFIG_KEY, DOCKERCFG]
            .into_iter()
            .find(|key| data.contains_key(*key));
        let Some((key, value)) = key.and_then(|key| Some((key, data.get(key)?))) else {
            return Ok(Err(self.missing_key(
                field,
                "Secret",
                &reference.name,
                &reference.key,
            )));
        };
        let config =
            value_or_return!(
                DockerConfig::parse(&value.0).map_err(|error| Failure::transient(
                    error.reason(),
                    format!("{field}: key {key} of Secret {}: {error}", reference.name),
                ))
            );
        let pulls = key == DOCKER_CONFIG_KEY
            && secret.type_.as_deref() == Some("kubernetes.io/dockerconfigjson")
            && config.is_universal();
        Ok(Ok(RegistrySecret {
            key: key.to_owned(),
            config,
            pulls,
        }))
    }

    /// Returns the tokens of `spec.terraformRegistries`, by their key in a build Secret.
    async fn registry_tokens(&self, tf: &Terraform) -> ReadResult<BTreeMap<String, Vec<u8>>> {
        let mut tokens = BTreeMap::new();
        for (index, registry) in tf.spec.terraform_registries.iter().enumerate() {
            let TokenRef { name, key } = &registry.secret_ref;
            let field = format!("spec.terraformRegistries[{index}].secretRef");
            if names::is_reserved_secret(name) {
                continue;
            }
            let data = value_or_return!(self.secret(&field, name).await?)
                .data
                .unwrap_or_default();
            let Some(token) = data.get(key) else {
                return Ok(Err(self.missing_key(&field, "Secret", name, key)));
            };
            if let Err(why) = parse_registry_token(&token.0) {
                let message = format!("{field}: key {key} of Secret {name}: {why}");
                return Ok(Err(Failure::transient(
                    Reason::TerraformTokenInvalid,
                    message,
                )));
            }
            tokens.insert(token_key(index), token.0.clone());
        }
        Ok(Ok(tokens))
    }

    /// Returns the existing inputs of runs, and the failure of the first missing input.
    async fn seen(
        &self,
        tf: &Terraform,
        registry: &Result<Option<RegistrySecret>, Failure>,
    ) -> Result<(InputsSeen, Option<Failure>), Error> {
        let mut missing = Missing::default();
        let registry = registry.as_ref().ok().and_then(Option::as_ref);
        let mut seen = InputsSeen {
            scripts: self.scripts(tf, &mut missing).await?,
            registry_key: registry.map(|registry| registry.key.clone()),
            docker_config: registry.map(RegistrySecret::text),
            pull_config: registry
                .filter(|registry| !registry.pulls)
                .map(RegistrySecret::text),
            ..InputsSeen::default()
        };
        let backend = tf.spec.backend.as_ref();
        if let Some(reference) = backend.and_then(|backend| backend.secret_ref.as_ref()) {
            let secret = self.secret("spec.backend.secretRef", &reference.name);
            let secret = missing.take_value(secret.await?);
            seen.backend = secret.map(strings).unwrap_or_default();
        }
        let runner = tf.spec.runner.iter();
        for reference in runner.flat_map(|runner| &runner.env_from_secrets) {
            let secret = self.secret("spec.runner.envFromSecrets", &reference.name);
            if let Some(secret) = missing.take_value(secret.await?) {
                seen.runner.insert(reference.name.clone(), strings(secret));
            }
        }
        seen.pod_secret_variables = self.pod_secret_variables(tf).await?;
        Ok((seen, missing.0))
    }

    /// Returns the names of environment variables from Secrets in the options of run pods. A missing Secret is not a failure: the kubelet reports
    /// it, unless it is optional.
    async fn pod_secret_variables(&self, tf: &Terraform) -> Result<BTreeSet<String>, Error> {
        let options = pod_options::of_run(
            tf,
            None,
            false,
            &BTreeSet::new(),
            &self.observer.ctx.settings,
        );
        let mut keys = BTreeMap::new();
        for reference in options
            .env_from
            .iter()
            .filter_map(|source| source.secret_ref.as_ref())
        {
            let name = &reference.name;
            if let Some(secret) = self.find(&self.observer.ctx.inputs.secrets, name).await? {
                let secret_keys = secret.data.unwrap_or_default().into_keys().collect();
                keys.insert(name.clone(), secret_keys);
            }
        }
        Ok(pod_options::secret_variables(&options, &keys))
    }

    async fn scripts(&self, tf: &Terraform, missing: &mut Missing) -> Result<ScriptTexts, Error> {
        let Some(scripts) = &tf.spec.scripts else {
            return Ok(ScriptTexts::default());
        };
        let init = self.script("spec.scripts.init", scripts.init.as_ref());
        let init = missing.take_value(init.await?).flatten();
        let plan = self.script("spec.scripts.plan", scripts.plan.as_ref());
        let plan = missing.take_value(plan.await?).flatten();
        let apply = self.script("spec.scripts.apply", scripts.apply.as_ref());
        let apply = missing.take_value(apply.await?).flatten();
        let destroy = self.script("spec.scripts.destroy", scripts.destroy.as_ref());
        let destroy = missing.take_value(destroy.await?).flatten();
        Ok(ScriptTexts {
            init,
            plan,
            apply,
            destroy,
        })
    }

    async fn script(&self, field: &str, script: Option<&Script>) -> ReadResult<Option<String>> {
        let Some(script) = script else {
            return Ok(Ok(None));
        };
        let Some(KeyRef { name, key }) = &script.config_map_ref else {
            let source = format!("{field}.inline");
            let inline = script.inline.clone();
            return Ok(inline.map(|text| check_script(&source, text)).transpose());
        };
        let field = format!("{field}.configMapRef");
        let map = value_or_return!(self.config_map(&field, name).await?);
        let Some(text) = map.data.as_ref().and_then(|data| data.get(key)) else {
            return Ok(Err(self.missing_key(&field, "ConfigMap", name, key)));
        };
        let source = format!("{field}: key {key} of ConfigMap {name}");
        Ok(check_script(&source, text.clone()).map(Some))
    }
}

/// Returns `text`. Fails if `text` has more than [`MAX_SCRIPT_BYTES`] bytes. The schema of the CRD limits only the number of characters.
fn check_script(source: &str, text: String) -> Result<String, Failure> {
    if text.len() <= MAX_SCRIPT_BYTES {
        return Ok(text);
    }
    let message = format!(
        "{source} is {} bytes; a script has at most {MAX_SCRIPT_BYTES} bytes",
        text.len()
    );
    Err(Failure::user(Reason::InputTooLarge, message))
}

fn text(bytes: &ByteString) -> String {
    String::from_utf8_lossy(&bytes.0).into_owned()
}

fn strings(secret: Secret) -> BTreeMap<String, String> {
    secret
        .data
        .unwrap_or_default()
        .iter()
        .map(|(key, value)| (key.clone(), text(value)))
        .collect()
}
