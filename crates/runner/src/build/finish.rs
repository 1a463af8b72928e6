//! Writes the files for the builder, and makes builds reproducible: the same inputs must produce the same files.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use alustan_api::paths::RUNNER_LAYER;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use rustix::process::geteuid;
use serde_json::Value;

use super::build_folders::BuildFolders;
use super::layer::TIME;
use super::request::ContextRequest;
use crate::certificates;
use crate::paths::Vars;

/// Writes the runner, the CA certificates and the Dockerfile for the builder. The container of `init` does not mount the folders of these
/// files: the module could otherwise replace the Dockerfile that the builder executes.
pub(super) fn write_builder_files(
    folders: &BuildFolders,
    request: &ContextRequest,
    dockerfile: &str,
    vars: &Vars,
) -> io::Result<()> {
    if request.inject {
        let programs = folders.source(&RUNNER_LAYER);
        fs::create_dir_all(&programs)?;
        fs::copy(std::env::current_exe()?, programs.join("alustan-runner"))?;
    }
    if let Some(bundle) = vars.get(certificates::BUNDLE) {
        fs::write(folders.root.join("ca.crt"), bundle)?;
    }
    level(&folders.root.join("src"))?;
    fs::write(folders.root.join("Dockerfile"), dockerfile)
}

/// Removes nondeterministic content from the prepared folders.
pub(super) fn finish(folders: &BuildFolders, directory: &Path) -> io::Result<()> {
    let data = directory.join(".terraform");
    remove_histories(&data.join("modules"))?;
    sort_modules(&data.join("modules/modules.json"))?;
    forget_lineage(&data.join("terraform.tfstate"))?;
    level(&folders.module)?;
    level(&folders.providers)
}

/// Removes the git history of remote modules, because runs do not need the history.
fn remove_histories(modules: &Path) -> io::Result<()> {
    let Ok(entries) = fs::read_dir(modules) else {
        return Ok(());
    };
    for entry in entries {
        let history = entry?.path().join(".git");
        match fs::symlink_metadata(&history) {
            Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(history)?,
            Ok(_) => fs::remove_file(history)?,
            Err(_) => {}
        }
    }
    Ok(())
}

fn sort_modules(file: &Path) -> io::Result<()> {
    edit_json(file, |manifest| {
        if let Some(modules) = manifest.get_mut("Modules").and_then(Value::as_array_mut) {
            modules.sort_by_key(|module| {
                module
                    .get("Key")
                    .and_then(Value::as_str)
                    .unwrap_or("")
                    .to_owned()
            });
        }
    })
}

/// Replaces the lineage in the file in which `init` stored the backend configuration by a constant: older engines write a random lineage, so
/// two builds would produce different files.
fn forget_lineage(file: &Path) -> io::Result<()> {
    edit_json(file, |state| {
        if let Some(lineage) = state.get_mut("lineage") {
            *lineage = Value::from("00000000-0000-0000-0000-000000000000");
        }
    })
}

fn edit_json(file: &Path, edit: impl FnOnce(&mut Value)) -> io::Result<()> {
    let Ok(bytes) = fs::read(file) else {
        return Ok(());
    };
    let mut value: Value = serde_json::from_slice(&bytes)?;
    edit(&mut value);
    fs::write(file, serde_json::to_vec(&value)?)
}

/// Sets a fixed modification time, and mode 0755 or 0644, for `path` and all files and folders below it. Skips folders of another user,
/// because only the owner may change mode and time. For example, the kubelet creates mount points as root.
fn level(path: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            level(&entry?.path())?;
        }
        if metadata.uid() != geteuid().as_raw() {
            return Ok(());
        }
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    } else if metadata.is_file() {
        let executable = metadata.permissions().mode() & 0o111 != 0;
        let mode = if executable { 0o755 } else { 0o644 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    let time = Timespec {
        tv_sec: TIME,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}
