"""Every subject of an audit, by the secret that is guessed."""

from collections.abc import Mapping

from colonnade.auditing.subjects.base import Subject
from colonnade.auditing.subjects.columns import Columns
from colonnade.auditing.subjects.labels import Labels
from colonnade.auditing.subjects.members import Members
from colonnade.secret import Secret

SUBJECTS: Mapping[Secret, Subject] = {subject.secret: subject for subject in (Labels(), Columns(), Members())}
