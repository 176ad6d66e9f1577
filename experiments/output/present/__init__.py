"""One model of documents, rendered to a terminal, to Markdown and to a web page: the same content in each.

A plan or a comparison is a `Document`, which one function makes from its facts.
"""

from ._document import Block as Block
from ._document import Callout as Callout
from ._document import Code as Code
from ._document import Document as Document
from ._document import Facts as Facts
from ._document import Figure as Figure
from ._document import Item as Item
from ._document import Listing as Listing
from ._document import Paragraph as Paragraph
from ._document import Section as Section
from ._document import Table as Table
from ._markdown import markdown as markdown
from ._terminal import folded as folded
from ._terminal import terminal as terminal
