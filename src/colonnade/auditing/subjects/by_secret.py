"""Every subject of an audit, by the secret that is guessed."""

from collections.abc import Mapping

from colonnade.auditing.subjects.base import Subject
from colonnade.auditing.subjects.columns import ColumnsSubject
from colonnade.auditing.subjects.labels import LabelsSubject
from colonnade.auditing.subjects.members import MembersSubject
from colonnade.secret import Secret

SUBJECTS: Mapping[Secret, Subject] = {
    subject.secret: subject for subject in (LabelsSubject(), ColumnsSubject(), MembersSubject())
}
