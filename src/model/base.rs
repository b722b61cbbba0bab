//! Shared base types: addresses and ports, netmap, backoff, bounds, sorted sets, rates, conditions, leader election, gzip, `HuJSON`, text tables.

pub mod backoff;
pub mod bounded;
pub mod conditions;
pub mod event_rates;
pub mod go_values;
pub mod gzip;
pub mod hash;
pub mod hujson;
pub mod leader;
pub mod net;
pub mod netmap;
pub mod paced;
pub mod rate;
pub mod small_set;
pub mod text_table;
