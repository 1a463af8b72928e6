//! Scans the JSON syntax: <https://developer.hashicorp.com/terraform/language/syntax/json>.
//!
//! Reads the text as a stream and skips everything except modules and backends.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::facts::{COMPUTED, Facts};

/// Reads facts (module calls and backend) up to the end of the text, or up to the first syntax error.
pub(super) fn read(text: &str) -> Facts {
    let mut facts = Facts::default();
    let mut reader = serde_json::Deserializer::from_str(text);
    let mut root = Objects(Root(&mut facts));
    let read = root.deserialize(&mut reader).and_then(|()| reader.end());
    if let Err(error) = read {
        facts.unclear(
            error.line().max(1),
            "the file is not a valid JSON configuration",
        );
    }
    facts
}

/// Reads the properties of one kind of object.
trait Properties {
    /// Reads the value of the property `name`.
    fn read<'de, M: MapAccess<'de>>(&mut self, name: &str, value: &mut M) -> Result<(), M::Error>;
}

/// Reads an object, or every object of a list: the syntax permits an object or a list of objects at each level. Skips other values.
struct Objects<P>(P);

/// Root object of a file.
struct Root<'f>(&'f mut Facts);

impl Properties for Root<'_> {
    fn read<'de, M: MapAccess<'de>>(&mut self, name: &str, value: &mut M) -> Result<(), M::Error> {
        match name {
            "module" | "mock_provider" => value.next_value_seed(&mut Objects(Modules(self.0))),
            "run" => value.next_value_seed(&mut Objects(Runs(self.0))),
            "terraform" => value.next_value_seed(&mut Objects(Settings(self.0))),
            _ => value.next_value::<IgnoredAny>().map(drop),
        }
    }
}

/// `run` blocks of a test file by name.
struct Runs<'f>(&'f mut Facts);

impl Properties for Runs<'_> {
    fn read<'de, M: MapAccess<'de>>(&mut self, name: &str, value: &mut M) -> Result<(), M::Error> {
        let facts = &mut *self.0;
        value.next_value_seed(&mut Objects(Run { name, facts }))
    }
}

struct Run<'f> {
    name: &'f str,
    facts: &'f mut Facts,
}

impl Properties for Run<'_> {
    fn read<'de, M: MapAccess<'de>>(&mut self, name: &str, value: &mut M) -> Result<(), M::Error> {
        if name != "module" {
            return value.next_value::<IgnoredAny>().map(drop);
        }
        value.next_value_seed(&mut Objects(Module {
            name: self.name,
            facts: self.facts,
        }))
    }
}

/// `module` blocks by name.
struct Modules<'f>(&'f mut Facts);

impl Properties for Modules<'_> {
    fn read<'de, M: MapAccess<'de>>(&mut self, name: &str, value: &mut M) -> Result<(), M::Error> {
        let facts = &mut *self.0;
        value.next_value_seed(&mut Objects(Module { name, facts }))
    }
}

struct Module<'f> {
    name: &'f str,
    facts: &'f mut Facts,
}

impl Properties for Module<'_> {
    fn read<'de, M: MapAccess<'de>>(&mut self, name: &str, value: &mut M) -> Result<(), M::Error> {
        if name != "source" {
            return value.next_value::<IgnoredAny>().map(drop);
        }
        let source: String = value.next_value()?;
        if source.contains("${") || source.contains("%{") {
            self.facts.unclear(1, COMPUTED);
        } else {
            self.facts.call(self.name, &source, 0);
        }
        Ok(())
    }
}

/// The `terraform` block.
struct Settings<'f>(&'f mut Facts);

impl Properties for Settings<'_> {
    fn read<'de, M: MapAccess<'de>>(&mut self, name: &str, value: &mut M) -> Result<(), M::Error> {
        match name {
            "backend" => value.next_value_seed(&mut Objects(Backends(self.0))),
            "cloud" => {
                self.0.backend("cloud");
                value.next_value::<IgnoredAny>().map(drop)
            }
            _ => value.next_value::<IgnoredAny>().map(drop),
        }
    }
}

/// `backend` blocks by type.
struct Backends<'f>(&'f mut Facts);

impl Properties for Backends<'_> {
    fn read<'de, M: MapAccess<'de>>(&mut self, name: &str, value: &mut M) -> Result<(), M::Error> {
        self.0.backend(name);
        value.next_value::<IgnoredAny>().map(drop)
    }
}

impl<'de, P: Properties> DeserializeSeed<'de> for &mut Objects<P> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, P: Properties> Visitor<'de> for &mut Objects<P> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(name) = map.next_key::<String>()? {
            self.0.read(&name, &mut map)?;
        }
        Ok(())
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<(), S::Error> {
        while list.next_element_seed(&mut *self)?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}
