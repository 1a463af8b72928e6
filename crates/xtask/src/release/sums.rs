//! Metadata of a release: the manifest for krew, the provenance, the checksums.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::file_io::{self, read, sha256};
use super::images::Images;
use super::package::{REPOSITORY, VERSION};

/// File with the checksums of all other files of the release.
const SUMS: &str = "SHA256SUMS";
const PROVENANCE: &str = "provenance.intoto.json";

/// Writes manifest, provenance and checksums into `dist`.
pub(super) fn write(dist: &Path, registry: &str, profile: &str) -> Result<()> {
    let krew = krew(&files(dist)?)?;
    file_io::write(&dist.join("krew.yaml"), krew)?;
    let images: Images = serde_json::from_str(&read(&dist.join("images.json"))?)?;
    let mut sums = files(dist)?;
    sums.retain(|name, _| name != SUMS && name != PROVENANCE);
    let commit = git(&["rev-parse", "HEAD"])?;
    let clean = git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    let built = json!({"profile": profile, "clean": clean});
    let statement = provenance(&sums, &images, registry, &commit, &built);
    let statement = file_io::json(&statement)?;
    sums.insert(PROVENANCE.to_owned(), sha256(statement.as_bytes()));
    file_io::write(&dist.join(PROVENANCE), statement)?;
    let lines: Vec<String> = sums
        .iter()
        .map(|(name, sum)| format!("{sum}  {name}\n"))
        .collect();
    file_io::write(&dist.join(SUMS), lines.concat())
}

/// Returns the checksums of the files in `dist` and its folder `sbom`. Excludes container images, which have digests.
fn files(dist: &Path) -> Result<BTreeMap<String, String>> {
    let mut sums = BTreeMap::new();
    for folder in ["", "sbom/"] {
        for entry in std::fs::read_dir(dist.join(folder))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                let name = format!("{folder}{}", entry.file_name().to_string_lossy());
                sums.insert(name, sha256(&std::fs::read(entry.path())?));
            }
        }
    }
    Ok(sums)
}

/// Builds the manifest of the kubectl plugin (<https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/>).
fn krew(sums: &BTreeMap<String, String>) -> Result<String> {
    let prefix = format!("kubectl-alustan_v{VERSION}_");
    let mut platforms = Vec::new();
    for (name, sum) in sums {
        let platform = name.strip_prefix(&prefix);
        let Some(platform) = platform.and_then(|name| name.strip_suffix(".tar.gz")) else {
            continue;
        };
        let (os, architecture) = platform
            .split_once('_')
            .with_context(|| format!("{name} names no architecture"))?;
        platforms.push(format!(
            "    - selector: {{matchLabels: {{os: {os}, arch: {architecture}}}}}\n      \
             uri: {REPOSITORY}/releases/download/v{VERSION}/{name}\n      \
             sha256: {sum}\n      bin: kubectl-alustan\n"
        ));
    }
    ensure!(
        !platforms.is_empty(),
        "no archive {prefix}*.tar.gz of the kubectl plugin; run hack/release/build"
    );
    let platforms = platforms.concat();
    Ok(format!(
        "apiVersion: krew.googlecontainertools.github.com/v1alpha2\nkind: Plugin\nmetadata:\n  name: alustan\nspec:\n  \
         version: v{VERSION}\n  homepage: {REPOSITORY}\n  \
         shortDescription: Approve, follow and inspect Terraform resources\n  description: |\n    \
         Shows and approves plans, prints logs of runs, shows dependencies, and manages the state of resources of\n    \
         Alustan, an operator that runs Terraform and OpenTofu from git on Kubernetes.\n  \
         platforms:\n{platforms}"
    ))
}

/// Builds the unsigned provenance of all files and images (<https://slsa.dev/spec/v1.0/provenance>). The release
/// workflow signs it.
fn provenance(
    sums: &BTreeMap<String, String>,
    images: &Images,
    registry: &str,
    commit: &str,
    built: &Value,
) -> Value {
    let digest = |sha256: &str| json!({"sha256": sha256});
    let files = sums
        .iter()
        .map(|(name, sum)| json!({"name": name, "digest": digest(sum)}));
    let images = images.iter().map(|(name, image)| {
        let sum = image.digest.trim_start_matches("sha256:");
        json!({"name": format!("{registry}/{name}"), "digest": digest(sum)})
    });
    json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": images.chain(files).collect::<Vec<_>>(),
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": format!("{REPOSITORY}/blob/v{VERSION}/hack/release"),
                "externalParameters": {"version": VERSION, "registry": registry},
                "internalParameters": built,
                "resolvedDependencies": [{"uri": format!("git+{REPOSITORY}"), "digest": {"gitCommit": commit}}],
            },
            "runDetails": {"builder": {"id": format!("{REPOSITORY}/tree/v{VERSION}/hack/release/bundle")}},
        },
    })
}

/// Runs git and returns its trimmed output.
fn git(arguments: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .args(arguments)
        .output()
        .context("run git")?;
    ensure!(output.status.success(), "git {arguments:?} failed");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn krew_manifest_lists_each_archive_with_its_checksum() {
        let name = format!("kubectl-alustan_v{VERSION}_linux_arm64.tar.gz");
        let sums = BTreeMap::from([
            (name.clone(), "ab".repeat(32)),
            ("install.yaml".to_owned(), "cd".repeat(32)),
        ]);
        let manifest: Value = serde_saphyr::from_str(&krew(&sums).unwrap()).unwrap();
        let platforms = manifest["spec"]["platforms"].as_array().unwrap();
        assert_eq!(platforms.len(), 1);
        let labels = json!({"os": "linux", "arch": "arm64"});
        assert_eq!(platforms[0]["selector"]["matchLabels"], labels);
        assert_eq!(platforms[0]["sha256"], "ab".repeat(32));
        assert!(platforms[0]["uri"].as_str().unwrap().ends_with(&name));
        assert!(krew(&BTreeMap::new()).is_err());
    }
}
