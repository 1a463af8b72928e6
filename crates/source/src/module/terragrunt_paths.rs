//! Paths in the configuration of Terragrunt, not evaluated.

use std::collections::BTreeMap;

/// Name of the configuration file of a unit.
pub(crate) const UNIT: &str = "terragrunt.hcl";
/// Recommended name of the configuration file that units include.
pub(crate) const ROOT: &str = "root.hcl";

/// Estimated size of a part of an expression without its text, in bytes.
const PART: usize = 64;

/// Paths in a configuration file of Terragrunt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Paths {
    /// Paths, in the order of the file.
    pub(crate) uses: Vec<PathUse>,
    /// Values of `locals` blocks, by name.
    pub(crate) locals: BTreeMap<String, Expression>,
}

impl Paths {
    /// Returns the approximate size in memory, in bytes.
    pub(crate) fn size(&self) -> usize {
        let uses = self.uses.iter().map(|path| path.path.size());
        let locals = self.locals.iter();
        uses.chain(locals.map(|(name, value)| name.len() + value.size()))
            .sum()
    }
}

/// A path in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathUse {
    pub(crate) kind: PathKind,
    pub(crate) path: Expression,
    /// Line, from 1.
    pub(crate) line: usize,
}

/// Meaning of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathKind {
    /// `path` of an `include` block: a configuration file that is merged into the unit.
    Include,
    /// Argument of `read_terragrunt_config`: a configuration file that is evaluated in its own folder.
    Config,
    /// Path of a `dependency` or `dependencies` block: the folder of another unit.
    Dependency,
    /// `source` of the `terraform` block: the module.
    Source,
    /// A file or folder that a function or an argument reads.
    File,
}

/// An expression with a path as its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expression {
    Text(String),
    /// A template: its parts in order.
    Template(Vec<Self>),
    /// A value of a `locals` block.
    Local(String),
    /// A call of a function.
    Call(String, Vec<Self>),
    /// Any other expression.
    Other,
}

impl Expression {
    fn size(&self) -> usize {
        PART + match self {
            Self::Text(text) | Self::Local(text) => text.len(),
            Self::Template(parts) => parts.iter().map(Self::size).sum(),
            Self::Call(name, arguments) => {
                name.len() + arguments.iter().map(Self::size).sum::<usize>()
            }
            Self::Other => 0,
        }
    }
}
