//! Command line of the runner, and the selection of tiers.

use clap::Parser;

use super::table::{Table, Tier};

/// Run the tests, tier by tier.
#[derive(Parser, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent flags of a command line")]
#[command(name = "tiers")]
pub(super) struct Options {
    /// Tiers to run (default: all but `upgrade`)
    tiers: Vec<String>,
    /// Tiers to run, separated by commas
    #[arg(long = "tier", value_delimiter = ',')]
    more: Vec<String>,
    /// Only tests whose names have this prefix, e.g. `kernel::flows`
    #[arg(long)]
    pub(super) only: Option<String>,
    /// Only tiers that need neither root nor servers
    #[arg(long)]
    check: bool,
    /// Slots: a tier uses one to three, the build of servers one
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) jobs: u32,
    /// Run the chosen tiers this many times
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) repeat: u32,
    /// Keep this many processes busy meanwhile, to find tests that depend on time
    #[arg(long, default_value_t = 0)]
    pub(super) busy: u32,
    /// Stop at the first tier that fails
    #[arg(long)]
    pub(super) fail_fast: bool,
    /// Build the test programs and run nothing
    #[arg(long, conflicts_with = "no_build")]
    pub(super) build_only: bool,
    /// Run the programs of the last build
    #[arg(long)]
    pub(super) no_build: bool,
    /// Print the tiers and their requirements
    #[arg(long)]
    pub(super) list: bool,
}

impl Options {
    pub(super) fn from_command_line() -> Self {
        Self::parse()
    }

    /// The chosen tiers, in the order of the table. Fails for a name that no tier has.
    pub(super) fn select(&self, table: &'static Table) -> Result<Vec<&'static Tier>, String> {
        let names: Vec<&String> = self.tiers.iter().chain(&self.more).collect();
        if let Some(unknown) = names.iter().find(|name| table.tiers.iter().all(|tier| tier.name != name.as_str())) {
            let tier_names: Vec<&str> = table.tiers.iter().map(|tier| tier.name).collect();
            return Err(format!("unknown tier {unknown}; tiers: {}", tier_names.join(" ")));
        }
        let is_named = |tier: &Tier| if names.is_empty() { !tier.by_hand } else { names.iter().any(|name| *name == tier.name) };
        let chosen = |tier: &&Tier| is_named(tier) && (!self.check || tier.check);
        match table.tiers.iter().filter(chosen).collect::<Vec<_>>() {
            none if none.is_empty() => Err("no tier is selected".to_owned()),
            tiers => Ok(tiers),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::table::TAILYARD;

    fn selected(arguments: &[&str]) -> Result<Vec<&'static str>, String> {
        let options = Options::try_parse_from([&["tiers"], arguments].concat()).expect("valid arguments");
        Ok(options.select(&TAILYARD)?.iter().map(|tier| tier.name).collect())
    }

    #[test]
    fn selection_is_in_table_order_and_rejects_unknown_names() {
        assert_eq!(selected(&["dns", "--tier", "kernel,lib"]), Ok(vec!["lib", "dns", "kernel"]));
        assert!(selected(&["nothing"]).is_err_and(|message| message.contains("unknown tier nothing")));
        assert!(selected(&["cluster", "--check"]).is_err());
    }

    #[test]
    fn tier_by_hand_runs_only_if_named() {
        let all = selected(&[]).expect("tiers");
        assert_eq!((all.len(), all.contains(&"upgrade")), (TAILYARD.tiers.len() - 1, false));
        assert_eq!(selected(&["upgrade"]), Ok(vec!["upgrade"]));
    }

    #[test]
    fn tiers_selected_by_check_need_no_servers() {
        let check = selected(&["--check"]).expect("tiers");
        assert!(check.contains(&"lib"));
        let needs = TAILYARD.tiers.iter().filter(|tier| check.contains(&tier.name)).map(|tier| tier.servers.len());
        assert_eq!(needs.sum::<usize>(), 0);
    }
}
