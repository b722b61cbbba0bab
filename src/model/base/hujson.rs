//! `HuJSON`: JSON with comments and trailing commas, nested at most 512 levels deep. Values have their positions, so that a text can be edited.

use jsonc_parser::{CollectOptions, ParseOptions};

pub use jsonc_parser::ast::{Object, ObjectProp, Value};
pub use jsonc_parser::common::Ranged;

/// The value of a text, if it has one; else the syntax error, without texts of the document.
pub fn parse(text: &str) -> Result<Option<Value<'_>>, String> {
    let options = ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let parsed = jsonc_parser::parse_to_ast(text, &CollectOptions::default(), &options);
    parsed.map(|parsed| parsed.value).map_err(|fault| fault.to_string())
}
