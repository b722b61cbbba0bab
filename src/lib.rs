//! Tailyard: a highly available `ProxyGroup` data plane.
//!
//! Everything is *inputs → plan → kernel*, level-triggered: after a change of an input the [`model::plan::world::World`] is rebuilt and the
//! plan is recomputed; only the difference is applied, in one transaction. There is no other path to the kernel.
//!
//! The module tree is the architecture. Permitted dependencies (checked by `tests/pure/layers.rs`):
//!
//! | layer | is | may name |
//! |---|---|---|
//! | [`api`] | WIRE: formats that other programs read and write | nothing of ours |
//! | [`model`] | PURE: decisions as values | `api` |
//! | [`edge`] | IO: one external system per file | `api`, `model`, `runtime` (plumbing only); no other edge |
//! | [`runtime`] | PLUMBING, domain-free | nothing of ours |
//! | [`proxy`] | DATA PLANE tasks | `api`, `model`, `edge`, `runtime` |
//! | [`reconciler`] | CONTROL PLANE tasks | `api`, `model`, `edge`, `runtime` |
//! | [`nameserver`] | DNS SERVER tasks | `api`, `model`, `edge`, `runtime` |
//! | [`load`] | LOAD: open-loop, towards any service | `api`, `model`, `edge`, `runtime` |
//! | [`demo`] | the proxy on one machine, under load | `api`, `model`, `edge`, `runtime`, `load` |
//! | [`inspect`] | read-only status and diagnosis commands | `api`, `model`, `edge`, `runtime` |
//! | [`cli`] | dispatch and settings | everything |

pub mod api;
pub mod cli;
pub mod demo;
pub mod edge;
pub mod inspect;
pub mod load;
pub mod model;
pub mod nameserver;
pub mod proxy;
pub mod reconciler;
pub mod runtime;
