//! Tokens of private registries of modules and providers, and the operator-wide CLI configuration.

use std::collections::BTreeMap;

use alustan_api::cli_config::{self, CliConfig};
use alustan_api::report::FailureClass;
use alustan_api::{Terraform, names, paths};
use alustan_core::objects::prepare::COMPLETENESS_KEY;
use alustan_core::settings::Settings;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Container;
use rstest::rstest;
use serde_json::{Value, json};

use super::objects::{CreatedObjects, appended, pod};
use crate::fixtures::{Edit as _, settings, terraform};
use crate::world::World;

const BUILDS: &str = "builds";

fn registries() -> Value {
    json!([
        {"host": "registry.test", "secretRef": {"name": "modules"}},
        {"host": "other.test:8443", "secretRef": {"name": "providers", "key": "password"}},
    ])
}

fn with_registries(tf: Terraform) -> Terraform {
    tf.with("/terraformRegistries", registries())
}

fn containers(job: &Job) -> Vec<Container> {
    let pod = pod(job);
    let init = pod.init_containers.into_iter().flatten();
    init.chain(pod.containers).collect()
}

fn variable(container: &Container, name: &str) -> Option<String> {
    let variables = container.env.iter().flatten();
    variables
        .filter(|variable| variable.name == name)
        .find_map(|variable| variable.value.clone())
}

/// Returns `Secret key file` for each file of the volume with the tokens.
fn tokens(job: &Job) -> Vec<String> {
    let volumes = pod(job).volumes.unwrap_or_default();
    let sources = volumes
        .into_iter()
        .filter(|volume| volume.name == "registries")
        .flat_map(|volume| volume.projected.unwrap().sources.unwrap());
    sources
        .flat_map(|source| {
            let secret = source.secret.unwrap();
            let optional = if secret.optional.unwrap() {
                " optional"
            } else {
                ""
            };
            let items = secret.items.unwrap().into_iter();
            items.map(move |item| format!("{} {} {}{optional}", secret.name, item.key, item.path))
        })
        .collect()
}

/// Asserts that only the container `prepare` of `job` has the tokens.
fn only_prepare_has_tokens(job: &Job) {
    for container in containers(job) {
        let mut mounts = container.volume_mounts.iter().flatten();
        let has_tokens = mounts.any(|mount| mount.name == "registries");
        assert_eq!(
            has_tokens,
            container.name == "prepare",
            "{}",
            container.name
        );
        let hosts = variable(&container, "ALUSTAN_REGISTRY_HOSTS");
        let wanted = has_tokens.then(|| "registry.test,other.test:8443".to_owned());
        assert_eq!(hosts, wanted);
        if has_tokens {
            let folder = variable(&container, "ALUSTAN_REGISTRY_TOKENS");
            assert_eq!(folder.as_deref(), Some(paths::REGISTRIES));
        }
    }
}

#[rstest]
#[case::kaniko(terraform())]
#[case::append(appended(terraform()))]
fn only_the_container_of_init_has_registry_tokens(#[case] tf: Terraform) {
    let created = CreatedObjects::of(with_registries(tf));
    let build = created.job("build");
    only_prepare_has_tokens(build);
    assert_eq!(
        tokens(build),
        ["modules token 0 optional", "providers password 1 optional"]
    );
    let run = created.job("apply");
    assert!(tokens(run).is_empty());
    let mut containers = containers(run).into_iter();
    assert!(containers.all(|container| variable(&container, "ALUSTAN_REGISTRY_HOSTS").is_none()));
}

#[test]
fn build_in_build_namespace_gets_tokens_from_the_build_secret() {
    let mut world = World::with(with_registries(terraform()));
    world.settings.build_namespace = Some(BUILDS.to_owned());
    let token = |index: u8| (format!("terraform-registry-{index}"), vec![index]);
    world.registry_tokens = [token(0), token(1)].into();
    for _ in 0..20 {
        world.reconcile();
        if !world.builds.is_empty() {
            break;
        }
    }
    let job = world.builds.keys().next().cloned().unwrap();
    let secret = world.builds[&job].secret.clone().unwrap().data.unwrap();
    assert_eq!(secret["terraform-registry-1"].0, [1]);
    let mut again = World::with(with_registries(terraform()));
    again.settings.build_namespace = Some(BUILDS.to_owned());
    let created = CreatedObjects::in_world(again);
    let build = created.job("alustan-build");
    only_prepare_has_tokens(build);
    let name = build.metadata.name.as_deref().unwrap();
    assert_eq!(
        tokens(build),
        [
            format!("{name} terraform-registry-0 0 optional"),
            format!("{name} terraform-registry-1 1 optional"),
            format!("{name} {COMPLETENESS_KEY} {COMPLETENESS_KEY}"),
        ]
    );
}

#[test]
fn tokens_change_neither_image_nor_run() {
    let mut world = World::with(with_registries(terraform()));
    world.run_until_converged();
    assert!(world.is_ready(), "{:?}", world.status());
    let image = world.status().image;
    world.registry_tokens = [("terraform-registry-0".to_owned(), b"new".to_vec())].into();
    world.run_until_converged();
    assert_eq!((world.run_number(), world.status().image), (1, image));
}

#[test]
fn list_of_registries_is_part_of_the_tag_and_starts_no_run() {
    let tag = |registries: Value| {
        let created = CreatedObjects::of(terraform().with("/terraformRegistries", registries));
        created.job("build").metadata.name.clone().unwrap()
    };
    let usual = tag(registries());
    assert_eq!(tag(registries()), usual);
    assert_ne!(tag(json!([])), usual);
    // The build pod assigns tokens to hosts by their order.
    let mut reversed = registries();
    reversed.as_array_mut().unwrap().reverse();
    assert_ne!(tag(reversed), usual);
    let mut other_secret = registries();
    other_secret[0]["secretRef"]["name"] = json!("another");
    assert_ne!(tag(other_secret), usual);

    let mut world = World::applied();
    world.edit(with_registries);
    world.run_until_converged();
    assert!(world.is_ready());
    assert_eq!(world.run_number(), 1);
}

#[test]
fn stalled_build_resumes_once_a_token_changes() {
    let mut world = World::with(with_registries(terraform()));
    world.registry_tokens = [("terraform-registry-0".to_owned(), b"wrong".to_vec())].into();
    while world.builds.is_empty() {
        world.reconcile();
    }
    world.advance_builds(Some(FailureClass::User));
    world.settle();
    assert!(world.is_stalled());
    world.registry_tokens = [("terraform-registry-0".to_owned(), b"right".to_vec())].into();
    world.run_until_converged();
    assert!(world.is_ready(), "{:?}", world.status());
}

#[rstest]
#[case::host(
    json!([{"host": "https://a.test", "secretRef": {"name": "a"}}]),
    "spec.terraformRegistries[0].host must be a host name"
)]
#[case::host_twice(
    json!([{"host": "a.test", "secretRef": {"name": "a"}}, {"host": "a.test", "secretRef": {"name": "b"}}]),
    "spec.terraformRegistries[1].host: a.test has another entry"
)]
#[case::secret_of_the_operator(
    json!([{"host": "a.test", "secretRef": {"name": "web-run", "key": "key"}}]),
    "spec.terraformRegistries[0].secretRef.name: web-run is the name of a Secret of the operator"
)]
#[case::too_many(
    (0..17).map(|host| json!({"host": format!("h{host}.test"), "secretRef": {"name": "a"}})).collect::<Vec<_>>().into(),
    "spec.terraformRegistries: 17 entries; at most 16 are allowed"
)]
fn invalid_registry_stalls_until_it_is_corrected(#[case] registries: Value, #[case] start: &str) {
    let mut world = World::new();
    world.edit(|tf| tf.with("/terraformRegistries", registries));
    world.settle();
    assert!(world.is_stalled());
    assert_eq!(world.reason(), "TerraformRegistryInvalid");
    let message = world.status().message;
    assert!(message.contains(start), "{message}");
    world.edit(with_registries);
    world.run_until_converged();
    assert!(world.is_ready(), "{:?}", world.status());
}

#[rstest]
#[case::both_used(&["other.test:8443", "registry.test"], "")]
#[case::one_unused(
    &["registry.test", "registry.terraform.io"],
    "; the module uses no module and no provider of spec.terraformRegistries[1].host (other.test:8443): correct the host, or remove the entry"
)]
fn ready_names_registries_that_the_module_does_not_use(#[case] used: &[&str], #[case] end: &str) {
    let mut world = World::with(with_registries(terraform()));
    world.run_until_converged();
    let mut record = world.record.clone().unwrap();
    let hosts = used.iter().map(|host| (*host).to_owned()).collect();
    record.history.reports[0].registry_hosts = Some(hosts);
    world.write_record(record);
    world.settle();
    assert!(world.is_ready());
    assert_eq!(
        world.status().message,
        format!("Terraform applied successfully{end}")
    );
}

#[test]
fn internationalized_registries_are_not_reported_as_unused() {
    let registry = json!([{"host": "xn--80akhbyknj4f.test", "secretRef": {"name": "a"}}]);
    let mut world = World::with(terraform().with("/terraformRegistries", registry));
    world.run_until_converged();
    let mut record = world.record.clone().unwrap();
    record.history.reports[0].registry_hosts = Some(Vec::new());
    world.write_record(record);
    world.settle();
    assert_eq!(world.status().message, "Terraform applied successfully");
}

#[test]
fn containers_of_the_engine_get_the_cli_configuration() {
    let config = CliConfig {
        hosts: BTreeMap::from([("a.test".to_owned(), BTreeMap::new())]),
        ..CliConfig::default()
    };
    let with_config = |config: Option<CliConfig>| {
        let mut world = World::new();
        world.settings = Settings {
            cli_config: config,
            ..settings()
        };
        CreatedObjects::in_world(world)
    };
    let created = with_config(Some(config.clone()));
    for (job, engine) in [("build", "prepare"), ("apply", "terraform")] {
        for container in containers(created.job(job)) {
            let text = variable(&container, cli_config::VARIABLE);
            let given = text.map(|text| serde_json::from_str(&text).unwrap());
            let wanted = (container.name == engine).then(|| config.clone());
            assert_eq!(given, wanted, "{}", container.name);
        }
    }
    // The configuration of the operator is not part of the tag: a change builds no images.
    let name = |created: &CreatedObjects| created.job("build").metadata.name.clone();
    assert_eq!(name(&with_config(None)), name(&created));
}

#[test]
fn destroy_without_an_image_gives_tokens_to_init_alone() {
    let mut world = World::with(with_registries(terraform()));
    world.run_until_converged();
    world.lose_images();
    world.delete();
    let created = CreatedObjects::by_destroying(world);
    let destroy = created.job("destroy");
    only_prepare_has_tokens(destroy);
    assert_eq!(
        destroy.metadata.name.as_deref(),
        Some(names::run_job("web", alustan_api::run::RunKind::Destroy, 2).as_str())
    );
}
