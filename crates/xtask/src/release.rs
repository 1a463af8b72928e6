//! `cargo xtask release`: generates the data files of a release. `hack/release` builds and packages the release, and
//! calls this command.

mod changelog;
mod deploy;
mod file_io;
mod images;
mod package;
mod sums;

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Subcommand;

use file_io::{json, read, write};
use package::VERSION;

#[derive(Subcommand)]
pub(crate) enum Release {
    /// Write the changelog section of this release into DIST/notes.md. With a tag, all version numbers must match the
    /// tag.
    Notes {
        dist: PathBuf,
        /// Tag, for example v0.1.0.
        #[arg(long)]
        tag: Option<String>,
    },
    /// Merge DIST/images/ARCHITECTURE/NAME into DIST/images/NAME, write the digests into DIST/images.json, and write
    /// DIST/deploy: a copy of deploy/ with these digests.
    Images {
        dist: PathBuf,
        /// Registry of the images, for example docker.io/alustan.
        #[arg(long)]
        registry: String,
    },
    /// Write the manifest for krew, the provenance and the checksums of all files in DIST.
    Sums {
        dist: PathBuf,
        /// Registry of the images, for example docker.io/alustan.
        #[arg(long)]
        registry: String,
        /// Cargo profile of the binaries.
        #[arg(long)]
        profile: String,
    },
}

/// Runs one step of a release.
pub(crate) fn run(root: &Path, step: Release) -> Result<()> {
    match step {
        Release::Notes { dist, tag } => {
            let chart = read(&root.join("deploy/helm/alustan/Chart.yaml"))?;
            let text = read(&root.join("CHANGELOG.md"))?;
            let notes = match tag {
                Some(tag) => {
                    agree(&tag, &chart)?;
                    changelog::of_release(&text, VERSION)?
                }
                None => changelog::of_next(&text, VERSION)?,
            };
            write(&dist.join("notes.md"), &notes)
        }
        Release::Images { dist, registry } => {
            let images = images::merge(&dist.join("images"))?;
            write(&dist.join("images.json"), &json(&images)?)?;
            deploy::write(root, &dist.join("deploy"), &registry, &images)
        }
        Release::Sums {
            dist,
            registry,
            profile,
        } => sums::write(&dist, &registry, &profile),
    }
}

/// Checks that tag, packages and chart have the same version.
fn agree(tag: &str, chart: &str) -> Result<()> {
    ensure!(
        tag == format!("v{VERSION}"),
        "tag {tag} does not match version {VERSION} in Cargo.toml; correct the tag or the version"
    );
    for key in ["version", "appVersion"] {
        let line = format!("{key}: {VERSION}");
        ensure!(
            chart.lines().any(|text| text == line),
            "Chart.yaml does not contain {line:?}, the version in Cargo.toml"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_must_match_the_version_of_packages_and_chart() {
        let chart = format!("version: {VERSION}\nappVersion: {VERSION}\n");
        let tag = format!("v{VERSION}");
        assert!(agree(&tag, &chart).is_ok());
        assert!(agree(VERSION, &chart).is_err(), "tags begin with v");
        assert!(agree("v9.9.9", &chart).is_err());
        let old = format!("version: {VERSION}\nappVersion: 0.0.1\n");
        let message = agree(&tag, &old).unwrap_err().to_string();
        assert!(message.contains("appVersion"), "{message}");
    }

    #[test]
    fn the_changelog_of_this_checkout_can_be_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text = read(&root.join("CHANGELOG.md")).unwrap();
        assert!(changelog::of_next(&text, VERSION).unwrap().len() > 100);
    }
}
