//! Commands whose flags are a table of settings, for clap.

use std::marker::PhantomData;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use crate::model::settings::Flags;
use crate::model::settings::table::Setting;

/// A command whose flags are the settings of a table.
pub(super) trait Configured {
    /// What follows the flags in `--help`.
    const AFTER_HELP: &'static str;

    /// Its settings, none of them given.
    fn none() -> Flags;
}

/// The flags of such a command that were given.
#[derive(Debug)]
pub(super) struct Given<C> {
    pub(super) flags: Flags,
    command: PhantomData<C>,
}

impl<C: Configured> Args for Given<C> {
    fn augment_args(command: Command) -> Command {
        let args = C::none().settings().iter().map(arg).collect::<Vec<_>>();
        command.args(args).after_help(C::AFTER_HELP)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<C: Configured> FromArgMatches for Given<C> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let none = C::none();
        let flags: Vec<_> = none.settings().iter().map(|setting| setting.flag).collect();
        let flags = flags.into_iter().fold(none, |given, flag| given.with(flag, matches.get_one::<String>(name(flag)).cloned()));
        Ok(Self { flags, command: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A flag with its help, its variable and its default.
fn arg(setting: &Setting) -> Arg {
    let Setting { heading, flag, variable, form, default, help } = *setting;
    let default = if default.is_empty() { String::new() } else { format!("; default: {default}") };
    Arg::new(name(flag)).long(name(flag)).value_name(form).help_heading(heading).help(format!("{help} [env: {variable}{default}]"))
}

fn name(flag: &str) -> &str {
    flag.trim_start_matches('-')
}
