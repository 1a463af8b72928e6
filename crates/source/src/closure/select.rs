//! What of the closure's folders goes in, and what must not. Pure.

use std::collections::BTreeMap;

use super::{Closure, Selection, invalid_path};
use crate::{
    error::Error,
    module, repopath,
    tree::{Astray, Entry, Found, Kind},
};

impl Closure<'_> {
    /// Everything that goes in, once nothing is wanted any more.
    pub(crate) fn finish(self) -> Result<Selection, Error> {
        let below = self
            .folders
            .iter()
            .flat_map(|folder| self.tree.below(folder));
        let singles = self
            .singles
            .iter()
            .filter_map(|path| Some((path, self.tree.get(path)?)));
        let mut entries = BTreeMap::new();
        let mut submodules = Vec::new();
        for (path, entry) in below.chain(singles).filter(|(path, _)| !is_left_out(path)) {
            check_name(path)?;
            if entry.kind == Kind::Submodule {
                submodules.push(path.clone());
            } else {
                entries.insert(path.clone(), entry.clone());
            }
        }
        submodules.dedup();
        if self.submodules {
            submodules.extend(self.entered.iter().cloned());
            submodules.sort();
            submodules.dedup();
            if !submodules.is_empty() {
                let backend = self.backend;
                return Ok(Selection {
                    entries,
                    submodules,
                    backend,
                });
            }
        }
        let links = entries.iter().filter(|(_, entry)| entry.kind == Kind::Link);
        for (link, _) in links {
            self.check_link(link, &entries)?;
        }
        Ok(Selection {
            entries,
            submodules,
            backend: self.backend,
        })
    }

    /// A link may go in when all it leads through and to goes in as well.
    fn check_link(&self, link: &str, entries: &BTreeMap<String, Entry>) -> Result<(), Error> {
        let refuse = |why| Error::SymlinkLeavesContext {
            link: link.to_owned(),
            target: self.tree.link(link).unwrap_or_default().to_owned(),
            why,
        };
        let followed = self.tree.follow(link).map_err(|astray| {
            refuse(match astray {
                Astray::Missing => "points at nothing in the repository",
                Astray::Outside => "leads out of the repository",
                Astray::Loop => "leads in circles",
            })
        })?;
        let inside = match &followed.found {
            Found::File(file) => entries.contains_key(file),
            Found::Folder(folder) => {
                !is_left_out(folder)
                    && self
                        .folders
                        .iter()
                        .any(|root| repopath::is_within(folder, root))
            }
            Found::Submodule(_) => {
                return Err(refuse(
                    "points into a submodule, which is fetched only when the module itself uses it",
                ));
            }
        };
        let passed = followed.links.iter().all(|link| entries.contains_key(link));
        if inside && passed {
            Ok(())
        } else {
            Err(refuse("leads out of what the module uses"))
        }
    }
}

/// What an engine or git leaves behind and no module is made of: `.git`, `.terraform`, `*.tfstate*`.
fn is_left_out(path: &str) -> bool {
    let state = |part: &str| part.contains(".tfstate") && !module::is_configuration(part);
    path.split('/')
        .any(|part| part.eq_ignore_ascii_case(".git") || part == ".terraform" || state(part))
}

/// Trees come from the network: a name must not be able to leave a folder.
fn check_name(path: &str) -> Result<(), Error> {
    if path.split('/').any(|part| ["", ".", ".."].contains(&part)) {
        return Err(invalid_path(path, "is no path that git makes"));
    }
    if path.contains([char::REPLACEMENT_CHARACTER, '\0']) {
        return Err(invalid_path(path, "is not UTF-8"));
    }
    Ok(())
}
