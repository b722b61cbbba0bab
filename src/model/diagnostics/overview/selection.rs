//! Selection of an overview's rows: all, one group or Connector, or one Service or Ingress with the group that serves it.

use super::Overview;
use super::snapshot::ClusterView;
use crate::api::names;

/// Rows to show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RowSelection {
    #[default]
    All,
    /// A group, or a Connector.
    Group(String),
    /// Namespace and name of a Service or Ingress.
    Object(String, String),
}

impl RowSelection {
    /// Parses `GROUP` or `NAMESPACE/NAME`.
    pub fn parse(text: &str) -> Self {
        match text.split_once('/') {
            Some((namespace, name)) => Self::Object(namespace.to_owned(), name.to_owned()),
            None => Self::Group(text.to_owned()),
        }
    }

    /// Whether an object of this group, if it has one, is selected.
    fn has(&self, namespace: &str, name: &str, group: Option<&str>) -> bool {
        match self {
            Self::All => true,
            Self::Group(selected) => group == Some(selected),
            Self::Object(selected, object) => selected == namespace && object == name,
        }
    }
}

impl Overview {
    /// Removes the rows of objects that are not selected.
    pub(super) fn select(&mut self, view: &ClusterView, selection: &RowSelection) {
        let annotated = |namespace: &str, name: &str| {
            let annotations = view.ingress_metadata(namespace, name)?.annotations.as_ref()?;
            annotations.get(names::PROXY_GROUP).map(String::as_str)
        };
        self.services.retain(|row| selection.has(&row.namespace, &row.name, Some(&row.group)));
        self.published.retain(|row| selection.has(&row.namespace, &row.name, row.group.as_deref()));
        self.standalone.retain(|row| selection.has(&row.namespace, &row.name, None));
        self.ingress_faults.retain(|row| selection.has(&row.namespace, &row.name, annotated(&row.namespace, &row.name)));
        self.connectors.retain(|row| match selection {
            RowSelection::All => true,
            RowSelection::Group(selected) => row.name == *selected,
            RowSelection::Object(..) => false,
        });
        self.is_of_object = match selection {
            RowSelection::All => false,
            RowSelection::Group(_) => !self.connectors.is_empty(),
            RowSelection::Object(..) => true,
        };
    }

    /// Whether a group is selected, or serves a selected object.
    pub(super) fn shows_group(&self, selection: &RowSelection, group: &str) -> bool {
        match selection {
            RowSelection::All => true,
            RowSelection::Group(selected) => selected == group,
            RowSelection::Object(..) => {
                self.services.iter().any(|row| row.group == group) || self.published.iter().any(|row| row.group.as_deref() == Some(group))
            }
        }
    }

    /// Whether no row shows the selected object.
    pub fn lacks_object(&self) -> bool {
        self.services.is_empty() && self.published.is_empty() && self.standalone.is_empty() && self.ingress_faults.is_empty()
    }

    /// Pods in its rows.
    pub fn pods(&self) -> impl Iterator<Item = &String> {
        self.replicas.iter().map(|replica| &replica.name).chain(self.standalone.iter().filter_map(|proxy| proxy.pod.as_ref()))
    }
}
