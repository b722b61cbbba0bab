//! `tailyard crd`: the definitions of our kinds, as YAML. Never talks to a cluster.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::api::crd::definitions;

/// Prints all definitions, one document each, in the order of their names.
pub(super) fn run(out: &mut dyn Write) -> Result<ExitCode> {
    for definition in definitions() {
        let mut definition = serde_json::to_value(definition).context("a definition cannot be written as JSON")?;
        whole(&mut definition);
        let document = serde_saphyr::to_string(&definition).context("a definition cannot be written as YAML")?;
        write!(out, "---\n{document}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Bounds are fractions in the format; all of ours are whole, and a reader expects `0`, not `0.0`.
fn whole(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let text = number.to_string();
            if let Some(Ok(whole)) = text.strip_suffix(".0").map(str::parse::<i64>) {
                *value = whole.into();
            }
        }
        Value::Array(values) => values.iter_mut().for_each(whole),
        Value::Object(values) => values.values_mut().for_each(whole),
        _ => {}
    }
}
