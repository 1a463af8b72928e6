//! Tests of the artifacts of `make release-dry-run` in the folder `ALUSTAN_DIST`.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_in_result,
    clippy::unwrap_used,
    reason = "a test may fail where it stands"
)]

#[path = "../deploy/rendered.rs"]
#[expect(dead_code, reason = "the other tests need it")]
mod rendered;
#[path = "../deploy/schemas.rs"]
mod schemas;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rendered::{objects, run};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn dist() -> PathBuf {
    let folder = std::env::var_os("ALUSTAN_DIST");
    PathBuf::from(folder.unwrap_or_else(|| panic!("run `make release-dry-run`")))
}

fn text(name: &str) -> String {
    let path = dist().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn json_of(name: &str) -> Value {
    serde_json::from_str(&text(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn sum(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    hex::encode(Sha256::digest(bytes))
}

/// Returns the digests of the image indexes by image name.
fn images() -> BTreeMap<String, String> {
    let images = json_of("images.json");
    images
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, image)| (name.clone(), image["digest"].as_str().unwrap().to_owned()))
        .collect()
}

/// Returns the architectures that were built.
fn architectures() -> Vec<String> {
    let images = json_of("images.json");
    let architectures = images["controller"]["architectures"].as_object().unwrap();
    assert!(!architectures.is_empty());
    architectures.keys().cloned().collect()
}

fn package() -> String {
    let path = dist().join(format!("alustan-{VERSION}.tgz"));
    path.to_str().unwrap().to_owned()
}

#[test]
fn release_contains_all_files_with_checksums() {
    let mut expected = BTreeSet::from(
        [
            "images.json",
            "install.yaml",
            "krew.yaml",
            "notes.md",
            "provenance.intoto.json",
        ]
        .map(str::to_owned),
    );
    expected.insert(format!("alustan-{VERSION}.tgz"));
    expected.insert(format!("alustan-kustomize-{VERSION}.tar.gz"));
    for architecture in architectures() {
        expected.insert(format!(
            "kubectl-alustan_v{VERSION}_linux_{architecture}.tar.gz"
        ));
        for name in images()
            .keys()
            .map(String::as_str)
            .chain(["kubectl-alustan"])
        {
            expected.insert(format!("sbom/{name}_linux_{architecture}.cdx.json"));
        }
    }
    let mut names = BTreeSet::new();
    for line in text("SHA256SUMS").lines() {
        let (expected, name) = line.split_once("  ").unwrap();
        assert_eq!(sum(&dist().join(name)), expected, "{name}");
        names.insert(name.to_owned());
    }
    assert_eq!(names, expected);
    assert!(images().contains_key("opentofu"));
    assert!(text("notes.md").starts_with("### "));
}

#[test]
fn image_blobs_are_complete_and_match_their_digests() {
    for (name, digest) in images() {
        let layout = dist().join("images").join(&name);
        let blobs = layout.join("blobs/sha256");
        for blob in std::fs::read_dir(&blobs).unwrap() {
            let blob = blob.unwrap();
            assert_eq!(*sum(&blob.path()), *blob.file_name(), "{name}");
        }
        let read = |digest: &Value| -> Value {
            let hex = digest.as_str().unwrap().strip_prefix("sha256:").unwrap();
            serde_json::from_slice(&std::fs::read(blobs.join(hex)).unwrap()).unwrap()
        };
        let outer = json_of(&format!("images/{name}/index.json"));
        assert_eq!(outer["manifests"][0]["digest"], digest);
        for part in read(&json!(digest))["manifests"].as_array().unwrap() {
            let manifest = read(&part["digest"]);
            let config = read(&manifest["config"]["digest"]);
            let platform = &part["platform"];
            assert_eq!(config["architecture"], platform["architecture"], "{name}");
            let labels = &config["config"]["Labels"];
            assert_eq!(labels["org.opencontainers.image.version"], VERSION);
            assert_eq!(config["config"]["User"], "65532:65532", "{name}");
            for layer in manifest["layers"].as_array().unwrap() {
                let hex = layer["digest"].as_str().unwrap().split_once(':').unwrap().1;
                assert!(blobs.join(hex).is_file(), "{name}: {hex}");
            }
        }
    }
}

/// Returns environment and image of the operator container in rendered manifests.
fn operator(rendered: &str) -> (BTreeMap<String, String>, String) {
    let objects = objects(rendered);
    let (_, deployment) = objects
        .iter()
        .find(|(id, _)| id.kind == "Deployment")
        .unwrap();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let env = container["env"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|variable| {
            let word = |key: &str| variable[key].as_str().map(str::to_owned);
            Some((word("name")?, word("value")?))
        });
    (
        env.collect(),
        container["image"].as_str().unwrap().to_owned(),
    )
}

#[test]
fn chart_and_bundle_name_the_images_by_their_digests() {
    let images = images();
    let base = if images.contains_key("terraform") {
        "terraform"
    } else {
        "opentofu"
    };
    let chart = run(
        "helm",
        &["template", "alustan", &package(), "-n", "alustan-system"],
    )
    .unwrap();
    for (source, rendered) in [("chart", chart), ("install.yaml", text("install.yaml"))] {
        let (env, image) = operator(&rendered);
        let is = |word: &str, name: &str| {
            let expected = format!("/{name}@{}", images[name]);
            assert!(
                word.ends_with(&expected),
                "{source}: {word} is not {expected}"
            );
        };
        is(&image, "controller");
        is(&env["ALUSTAN_OPERATOR_IMAGE"], "controller");
        is(&env["ALUSTAN_BASE_IMAGE"], base);
        for (name, digest) in images.iter().filter(|(name, _)| *name != "controller") {
            assert!(env["ALUSTAN_ENGINES"].contains(digest), "{source}: {name}");
        }
    }
    let chart = run("helm", &["show", "chart", &package()]).unwrap();
    assert!(chart.contains(&format!("appVersion: {VERSION}\n")));
    assert!(chart.contains(&format!("\nversion: {VERSION}\n")));
}

#[test]
fn the_overlay_prod_has_the_digests_and_can_be_applied() {
    let folder = tempfile::tempdir().unwrap();
    let archive = dist().join(format!("alustan-kustomize-{VERSION}.tar.gz"));
    let place = folder.path().to_str().unwrap();
    run("tar", &["-xzf", archive.to_str().unwrap(), "-C", place]).unwrap();
    let prod = format!("{place}/kustomize/overlays/prod");
    let rendered = run("kubectl", &["kustomize", &prod]).unwrap();
    assert!(!rendered.contains(&"0".repeat(64)));
    let (env, image) = operator(&rendered);
    let registry = std::env::var("REGISTRY").unwrap_or_else(|_| "docker.io/alustan".to_owned());
    let controller = format!("{registry}/controller@{}", images()["controller"]);
    assert_eq!(image, controller);
    assert_eq!(env["ALUSTAN_OPERATOR_IMAGE"], image);
    let base = env["ALUSTAN_BASE_IMAGE"].rsplit('@').next().unwrap();
    assert!(images().values().any(|digest| digest == base));
}

#[test]
fn installed_manifests_conform_to_the_schemas() {
    let values = rendered::file(
        "replicas: 2\nnetworkPolicy: {enabled: true}\nallowed: {approval: Manual}\npodDisruptionBudget: {enabled: true}\n",
    );
    let values = values.path().to_str().unwrap();
    let chart = [
        "template",
        "alustan",
        &package(),
        "-n",
        "alustan-system",
        "-f",
        values,
    ];
    let chart = run("helm", &chart).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut kinds = BTreeSet::new();
    for (name, rendered) in [("chart", chart), ("bundle", text("install.yaml"))] {
        kinds.extend(
            objects(&rendered)
                .into_keys()
                .map(|id| (id.api_version, id.kind)),
        );
        std::fs::write(folder.path().join(format!("{name}.yaml")), rendered).unwrap();
    }
    let result = schemas::conforms(folder.path(), &kinds);
    println!("{}", result.unwrap_or_else(|message| panic!("{message}")));
}

/// Returns the package URLs (purl) of the components in an SBOM.
fn purls(name: &str) -> Vec<String> {
    let sbom = json_of(name);
    assert_eq!(sbom["bomFormat"], "CycloneDX", "{name}");
    sbom["components"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|component| component["purl"].as_str().map(str::to_owned))
        .collect()
}

#[test]
fn sbom_lists_crates_debian_packages_and_engine_modules() {
    for architecture in architectures() {
        for name in images().keys() {
            let purls = purls(&format!("sbom/{name}_linux_{architecture}.cdx.json"));
            let mut wanted = vec![
                "pkg:cargo/alustan-runner@",
                "pkg:cargo/kube@",
                "pkg:deb/debian/git@",
            ];
            wanted.extend(["pkg:cargo/rustls@", "pkg:deb/debian/openssh-client@"]);
            match name.as_str() {
                "controller" => wanted.push("pkg:cargo/alustan-controller@"),
                "terraform" => wanted.push("pkg:golang/github.com/hashicorp/hcl"),
                _ => wanted.push("pkg:golang/github.com/opentofu/opentofu"),
            }
            for wanted in wanted {
                assert!(
                    purls.iter().any(|purl| purl.starts_with(wanted)),
                    "{name}: {wanted}"
                );
            }
        }
        let plugin = purls(&format!(
            "sbom/kubectl-alustan_linux_{architecture}.cdx.json"
        ));
        assert!(
            plugin
                .iter()
                .any(|purl| purl.starts_with("pkg:cargo/kube@"))
        );
        assert!(plugin.iter().all(|purl| purl.starts_with("pkg:cargo/")));
    }
}

#[test]
fn krew_manifest_names_existing_archives() {
    let manifest: Value = serde_saphyr::from_str(&text("krew.yaml")).unwrap();
    assert_eq!(manifest["spec"]["version"], format!("v{VERSION}"));
    let platforms = manifest["spec"]["platforms"].as_array().unwrap();
    assert_eq!(platforms.len(), architectures().len());
    for platform in platforms {
        let name = platform["uri"]
            .as_str()
            .unwrap()
            .rsplit('/')
            .next()
            .unwrap();
        assert_eq!(platform["sha256"], sum(&dist().join(name)), "{name}");
        let archive = dist().join(name);
        let files = run("tar", &["-tzf", archive.to_str().unwrap()]).unwrap();
        assert_eq!(files, "kubectl-alustan\nLICENSE\n", "{name}");
    }
}

#[test]
fn provenance_names_the_commit_and_all_artifacts() {
    let statement = json_of("provenance.intoto.json");
    assert_eq!(statement["predicateType"], "https://slsa.dev/provenance/v1");
    let source = &statement["predicate"]["buildDefinition"]["resolvedDependencies"][0];
    let head = run("git", &["rev-parse", "HEAD"]).unwrap();
    assert_eq!(source["digest"]["gitCommit"], head.trim());
    let subjects: BTreeSet<&str> = statement["subject"]
        .as_array()
        .unwrap()
        .iter()
        .map(|subject| subject["digest"]["sha256"].as_str().unwrap())
        .collect();
    let sums = text("SHA256SUMS");
    let sums = sums.lines().filter_map(|line| line.split_once("  "));
    for (sum, name) in sums.filter(|(_, name)| *name != "provenance.intoto.json") {
        assert!(subjects.contains(sum), "{name}");
    }
    for (name, digest) in images() {
        assert!(
            subjects.contains(digest.trim_start_matches("sha256:")),
            "{name}"
        );
    }
}
