//! From what an expression gives to JSON, within limits.

use cel::Value as Cel;
use serde_json::{Map, Value};

/// The most that an expression may give, in bytes of text and numbers of items together.
const MOST: usize = 256 * 1024;

/// The JSON of `value`, or why there is none.
pub(crate) fn of(value: &Cel) -> Result<Value, String> {
    convert(value, &mut MOST.clone())
}

fn convert(value: &Cel, left: &mut usize) -> Result<Value, String> {
    let size = match value {
        Cel::String(text) => text.len() + 1,
        _ => 1,
    };
    spend(left, size)?;
    match value {
        Cel::List(items) => {
            let items = items.iter().map(|item| convert(item, left));
            items.collect::<Result<_, _>>().map(Value::Array)
        }
        Cel::Map(map) => {
            let mut object = Map::new();
            for (key, value) in map.map.iter() {
                let key = key.to_string();
                spend(left, key.len())?;
                object.insert(key, convert(value, left)?);
            }
            Ok(Value::Object(object))
        }
        Cel::Int(_) | Cel::UInt(_) | Cel::Float(_) | Cel::String(_) | Cel::Bool(_) | Cel::Null => {
            value.json().map_err(|_| no_json(value))
        }
        _ => Err(no_json(value)),
    }
}

fn spend(left: &mut usize, size: usize) -> Result<(), String> {
    *left = left
        .checked_sub(size)
        .ok_or_else(|| format!("it gives more than {MOST} bytes"))?;
    Ok(())
}

fn no_json(value: &Cel) -> String {
    format!("it gives {}, which JSON has not", value.type_of())
}
