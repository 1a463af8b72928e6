//! Merges the pod options of a resource with the defaults of the operator, and refuses options that are not allowed.
//!
//! The CRD refuses most reserved names and paths at admission. These checks also cover an older CRD, and the defaults of the operator.

mod limits;
mod merge;
mod reserved;
mod violation;

use std::collections::{BTreeMap, BTreeSet};

use alustan_api::report::Failure;
use alustan_api::run::Pin;
use alustan_api::{PodOptions, Reason, Terraform};
use serde_json::{Value, json};

use self::limits::{above_maximum, unless_allowed};
use self::merge::{make_references_optional, merge};
use self::reserved::{Check, secret_of, shared_claim, unknown_volume};
use self::violation::Violation;
use crate::digest;
use crate::pod_policy::{BUILD_GRACE, PodPolicy, RUN_GRACE};
use crate::quantity;
use crate::settings::Settings;

const RUN_FIELD: &str = "spec.runner.pod";
const BUILD_FIELD: &str = "spec.containerRegistry.builder.pod";

/// Returns the failure if the pod options in the spec of `tf` are not allowed. `shared_claims`: claims that resources of the namespace share
/// as cache volume.
pub fn refusal(
    tf: &Terraform,
    shared_claims: &BTreeSet<String>,
    settings: &Settings,
) -> Option<Failure> {
    let run = run_options(tf)
        .and_then(|options| Some((RUN_FIELD, run_violation(options, shared_claims, settings)?)));
    let violation = run.or_else(|| {
        let options = build_options(tf)?;
        let elsewhere = settings
            .builds_elsewhere(tf)
            .then(|| elsewhere_violation(options, settings.build_namespace_of(tf)))
            .flatten();
        let violation = elsewhere
            .or_else(|| shared_claim(options, shared_claims))
            .or_else(|| violation(options, &settings.pods.builds, BUILD_GRACE, settings));
        Some((BUILD_FIELD, violation?))
    });
    violation.map(|(field, Violation { path, cause })| {
        Failure::user(
            Reason::PodOptionNotAllowed,
            format!("{field}.{path}: {cause}"),
        )
    })
}

/// Checks the defaults of the operator.
///
/// # Errors
///
/// Returns the message of the first option that is always refused, or of the first invalid limit.
pub fn check_policy(
    policy: &PodPolicy,
    environment: &BTreeMap<String, String>,
) -> Result<(), String> {
    let defaults = [
        ("runs", &policy.runs, RUN_GRACE),
        ("builds", &policy.builds, BUILD_GRACE),
    ];
    for (field, options, grace) in defaults {
        let check = Check {
            options,
            environment,
            grace,
        };
        if let Some(Violation { path, cause }) = check.always().or_else(|| unknown_volume(options))
        {
            return Err(format!("{field}.{path}: {cause}"));
        }
    }
    let mut maximum = policy.maximum.resources.iter();
    match maximum.find(|(_, value)| quantity::parse(value).is_none()) {
        Some((name, value)) => Err(format!(
            "maximum.resources.{name}: {:?} is not a quantity such as 500m or 4Gi",
            value.0
        )),
        None => Ok(()),
    }
}

/// Returns the options of the pod of a run of `tf`. If the options in the spec are not allowed, which prevents new runs but no destroy,
/// returns those in `pin`, the pin of the last apply, or only their environment if other options in `pin` are not allowed either.
/// `shared_claims`: as in [`refusal`]. `destroys`: whether Secrets and ConfigMaps are optional, because they may be deleted together with the resource.
pub fn of_run(
    tf: &Terraform,
    pin: Option<&Pin>,
    destroys: bool,
    shared_claims: &BTreeSet<String>,
    settings: &Settings,
) -> PodOptions {
    let is_allowed =
        |options: &&PodOptions| run_violation(options, shared_claims, settings).is_none();
    let allowed = run_options(tf).filter(is_allowed);
    let is_refused = allowed.is_none() && run_options(tf).is_some();
    let pinned = pin.filter(|_| is_refused).and_then(pinned_options);
    let allowed_of_pin = pinned.and_then(|options| allowed_part(options, shared_claims, settings));
    let options = allowed.cloned().or(allowed_of_pin).unwrap_or_default();
    let mut merged = merge(&settings.pods.runs, options);
    if destroys {
        make_references_optional(&mut merged);
    }
    merged
}

/// Returns `options` if they are allowed, else their environment if that is allowed.
fn allowed_part(
    options: PodOptions,
    shared_claims: &BTreeSet<String>,
    settings: &Settings,
) -> Option<PodOptions> {
    let environment = PodOptions {
        env: options.env.clone(),
        env_from: options.env_from.clone(),
        ..PodOptions::default()
    };
    [options, environment]
        .into_iter()
        .find(|options| run_violation(options, shared_claims, settings).is_none())
}

/// Returns the options of the build pod of `tf`.
pub fn of_build(tf: &Terraform, settings: &Settings) -> PodOptions {
    let options = build_options(tf).cloned().unwrap_or_default();
    merge(&settings.pods.builds, options)
}

/// Returns a digest of `options`: 12 hexadecimal characters, or empty without options.
pub fn digest(options: &PodOptions) -> String {
    if *options == PodOptions::default() {
        return String::new();
    }
    digest::plain(options).chars().take(12).collect()
}

/// Returns `key`, under which failures are counted, with `digest`, the digest of the pod options: after a change of the options, the count
/// starts again.
pub(crate) fn with_digest(key: String, digest: &str) -> String {
    if digest.is_empty() {
        key
    } else {
        format!("{key} in pod {digest}")
    }
}

/// Returns the options of `tf` that are part of the config hash: environment, volumes, and names of hosts, which determine the servers that
/// get credentials. `None` if the spec has none of them. The defaults of the operator are not part of the hash, so that a change of them
/// starts no runs.
pub(crate) fn hashed(tf: &Terraform) -> Option<Value> {
    run_options(tf).and_then(inputs)
}

/// Like [`hashed`], for the options of the build pod, which are part of the image tag.
pub(crate) fn inputs_of_build(tf: &Terraform) -> Option<Value> {
    build_options(tf).and_then(inputs)
}

/// Returns the options that programs in a pod can read.
fn inputs(options: &PodOptions) -> Option<Value> {
    let PodOptions {
        env,
        env_from,
        volumes,
        volume_mounts,
        host_aliases,
        dns_config,
        ..
    } = options;
    let is_empty = env.is_empty()
        && env_from.is_empty()
        && volumes.is_empty()
        && volume_mounts.is_empty()
        && host_aliases.is_empty()
        && dns_config.is_none();
    (!is_empty).then(|| {
        json!([
            env,
            env_from,
            volumes,
            volume_mounts,
            host_aliases,
            dns_config
        ])
    })
}

/// Returns the names of the environment variables in `options` whose values come from Secrets. `keys`: keys of the Secrets in `envFrom`, by
/// Secret.
pub fn secret_variables(
    options: &PodOptions,
    keys: &BTreeMap<String, BTreeSet<String>>,
) -> BTreeSet<String> {
    let single = options
        .env
        .iter()
        .filter(|variable| secret_of(variable).is_some())
        .map(|variable| variable.name.clone());
    let whole = options.env_from.iter().flat_map(|source| {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        let secret = source.secret_ref.as_ref();
        let keys = secret.and_then(|secret| keys.get(&secret.name));
        keys.into_iter()
            .flatten()
            .map(move |key| format!("{prefix}{key}"))
    });
    single.chain(whole).collect()
}

fn run_options(tf: &Terraform) -> Option<&PodOptions> {
    tf.spec.runner.as_ref()?.pod.as_deref()
}

fn build_options(tf: &Terraform) -> Option<&PodOptions> {
    let builder = tf.spec.container_registry.builder.as_ref()?;
    builder.pod.as_deref()
}

/// Returns the options of runs in the spec of `pin`.
fn pinned_options(pin: &Pin) -> Option<PodOptions> {
    let options = pin.spec.pointer("/runner/pod")?;
    serde_json::from_value(options.clone()).ok()
}

fn run_violation(
    options: &PodOptions,
    shared_claims: &BTreeSet<String>,
    settings: &Settings,
) -> Option<Violation> {
    shared_claim(options, shared_claims)
        .or_else(|| violation(options, &settings.pods.runs, RUN_GRACE, settings))
}

/// Returns the first violation in `options`, which a resource sets.
fn violation(
    options: &PodOptions,
    defaults: &PodOptions,
    grace: i64,
    settings: &Settings,
) -> Option<Violation> {
    let check = Check {
        options,
        environment: &settings.environment,
        grace,
    };
    check
        .always()
        .or_else(|| unless_allowed(options, &settings.pods))
        .or_else(|| above_maximum(options, &settings.pods))
        .or_else(|| unknown_volume(&merge(defaults, options.clone())))
}

/// Returns the first option other than `resources`. The build namespace contains credentials of all tenants during their builds.
fn elsewhere_violation(options: &PodOptions, namespace: &str) -> Option<Violation> {
    let others = serde_json::to_value(PodOptions {
        resources: None,
        ..options.clone()
    });
    let fields = others.unwrap_or_default();
    let path = fields.as_object()?.keys().next()?;
    let cause = format!(
        "builds run in namespace {namespace} (--build-namespace), which contains credentials of all \
         tenants; only resources is allowed; remove {path}, or ask the administrator of the \
         operator to set it as a default (builds in the file of --pod-defaults)"
    );
    Some(Violation::new(path, cause))
}
